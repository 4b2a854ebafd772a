"use strict";

Redoc.init("/openapi.json", { disableSearch: false, hideDownloadButtons: false }, document.getElementById("reference"));
