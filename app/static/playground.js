// The playground: forms come from each operator's JSON Schema, answers from the service, nothing from anywhere else.
import { drawAnswer } from "/static/drawing.js";
import { snippet } from "/static/snippets.js";

const $ = (id) => document.getElementById(id);
const OFF_WHILE_TYPING_MS = 120;

let operators = [];
let picture = null; // { blob, name, url }
let running = null;
let timer = 0;

const operator = () => operators[$("operator").selectedIndex];

function numberInputs(name, schema, value, field) {
  const low = schema.minimum ?? schema.exclusiveMinimum ?? 0;
  // The slider covers what is usual; the number beside it takes whatever the schema allows.
  const high = Math.min(schema.maximum ?? schema.exclusiveMaximum ?? Infinity, Math.max(value * 4, low + 10));
  const step = schema.type === "integer" ? 1 : 10 ** Math.floor(Math.log10((high - low) / 100));
  const number = Object.assign(document.createElement("input"), { type: "number", id: `p-${name}`, name, step: "any", value });
  const slider = Object.assign(document.createElement("input"), { type: "range", min: low, max: high, step, value });
  slider.setAttribute("aria-label", name);
  slider.addEventListener("input", () => { number.value = slider.value; });
  number.addEventListener("input", () => { slider.value = number.value; });
  field.append(number, slider);
}

function choiceInput(name, choices, value, field) {
  const select = Object.assign(document.createElement("select"), { id: `p-${name}`, name });
  for (const choice of choices) select.add(new Option(choice, choice, choice === value, choice === value));
  field.append(select);
}

function parameterField(name, schema) {
  const field = document.createElement("div");
  field.className = "parameter";
  field.append(Object.assign(document.createElement("label"), { htmlFor: `p-${name}`, textContent: name }));
  if (schema.enum || schema.const !== undefined) choiceInput(name, schema.enum ?? [schema.const], schema.default, field);
  else if (schema.type === "boolean") {
    field.append(Object.assign(document.createElement("input"), { type: "checkbox", id: `p-${name}`, name, checked: schema.default }));
  } else numberInputs(name, schema, schema.default, field);
  field.append(Object.assign(document.createElement("small"), { textContent: schema.description ?? "" }));
  return field;
}

function showOperator() {
  const chosen = operator();
  $("summary").textContent = chosen.summary;
  const legend = $("parameters").querySelector("legend");
  const fields = Object.entries(chosen.params.properties ?? {}).map(([name, schema]) => parameterField(name, schema));
  $("parameters").replaceChildren(legend, ...(fields.length ? fields : ["This operator has none."]));
  location.hash = chosen.path.replace("/v1/", "");
  run();
}

function query() {
  const values = new URLSearchParams();
  for (const input of $("parameters").querySelectorAll("[name]")) {
    values.set(input.name, input.type === "checkbox" ? input.checked : input.value);
  }
  return values;
}

async function usePicture(blob, name) {
  if (picture) URL.revokeObjectURL(picture.url);
  picture = { blob, name, url: URL.createObjectURL(blob) };
  $("before").src = picture.url;
  run();
}

async function useSample() {
  usePicture(await (await fetch("/static/sample.jpg")).blob(), "sample.jpg");
}

function showTimings(execution, total) {
  const rows = ["decode_ms", "queue_ms", "compute_ms", "encode_ms"].map((key) => [key.replace("_ms", ""), execution[key]]);
  rows.push(["round trip", total]);
  $("timings").tBodies[0].replaceChildren(...rows.map(([name, ms]) => {
    const row = document.createElement("tr");
    row.insertCell().textContent = name;
    row.insertCell().textContent = `${ms.toFixed(2)} ms`;
    row.insertCell().append(Object.assign(document.createElement("meter"), { max: total, value: ms }));
    return row;
  }));
}

function shortened(answer) {
  return JSON.stringify(answer, (key, value) => {
    if (typeof value === "string" && value.length > 120) return `${value.slice(0, 60)}... (${value.length} characters)`;
    if (Array.isArray(value) && value.length > 24) return [...value.slice(0, 24), `... (${value.length} in all)`];
    return value;
  }, 2);
}

function showError(text) {
  $("status").className = "error";
  $("status").textContent = text;
}

async function run() {
  if (!picture || !operators.length) return;
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const url = `${operator().path}?${query()}`;
  showCode();
  const began = performance.now();
  try {
    const headers = { "Content-Type": picture.blob.type || "application/octet-stream", Accept: "application/json" };
    const response = await fetch(url, { method: "POST", body: picture.blob, headers, signal });
    const answer = await response.json();
    const total = performance.now() - began;
    $("json").textContent = shortened(answer);
    if (!response.ok) return showError(`${answer.status} ${answer.code}: ${answer.detail}`);
    const { image, execution } = answer;
    $("status").className = "";
    $("status").textContent = `${image.width} x ${image.height} ${image.format}, ${answer.result.kind}, on ${execution.backend}`;
    showTimings(execution, total);
    await drawAnswer($("after"), answer, picture.blob);
    document.body.dataset.answered = answer.request_id;
  } catch (error) {
    if (error.name !== "AbortError") showError(`The service does not answer: ${error.message}`);
  }
}

let language = "curl";

function showCode() {
  const url = new URL(`${operator().path}?${query()}`, location.href);
  $("code").textContent = snippet(language, url.href, picture?.name ?? "image.jpg", picture?.blob.type || "application/octet-stream");
}

for (const button of document.querySelectorAll("[data-language]")) {
  button.addEventListener("click", async () => {
    language = button.dataset.language;
    showCode();
    // Only secure origins may write to the clipboard; the code is on the page in any case.
    await navigator.clipboard?.writeText($("code").textContent).catch(() => undefined);
  });
}

$("controls").addEventListener("submit", (event) => event.preventDefault());
$("operator").addEventListener("change", showOperator);
window.addEventListener("hashchange", () => {
  const path = location.hash.slice(1);
  if (path === $("operator").value || !operators.some((each) => each.path === `/v1/${path}`)) return;
  $("operator").value = path;
  showOperator();
});
$("parameters").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(run, OFF_WHILE_TYPING_MS); });
$("sample").addEventListener("click", useSample);
$("file").addEventListener("change", () => { const [file] = $("file").files; if (file) usePicture(file, file.name); });
document.addEventListener("paste", (event) => { const [file] = event.clipboardData.files; if (file) usePicture(file, file.name); });
document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
document.addEventListener("dragleave", () => document.body.classList.remove("dropping"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  const [file] = event.dataTransfer.files;
  if (file) usePicture(file, file.name);
});

operators = (await (await fetch("/v1/operators")).json()).operators;
for (const each of operators) {
  const path = each.path.replace("/v1/", "");
  const chosen = location.hash === `#${path}`;
  $("operator").add(new Option(path, path, chosen, chosen));
}
if (!location.hash) $("operator").value = operators.some((each) => each.path === "/v1/edges/canny") ? "edges/canny" : $("operator").value;
showOperator();
await useSample();
