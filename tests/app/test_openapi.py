from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.openapi import Document
from app.settings import Settings
from cuda_ops import operators

KNOWN = operators()
DOCUMENT = Document(Settings(), KNOWN).build()
OPERATIONS = {(path, method): operation for path, item in DOCUMENT["paths"].items() for method, operation in item.items()}
WORK = [path for path, method in OPERATIONS if method == "post"]


def test_the_committed_document_is_this_one():
    committed = json.loads((Path(__file__).resolve().parents[2] / "docs/openapi.json").read_text())
    assert committed == DOCUMENT, "run: make openapi"


def test_every_reference_leads_somewhere():
    def walk(node):
        if isinstance(node, dict):
            if "$ref" in node:
                target = DOCUMENT
                for token in node["$ref"].removeprefix("#/").split("/"):
                    target = target[token]
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(DOCUMENT)


def test_operation_ids_are_unique_and_stable():
    ids = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(ids)) == len(ids)
    assert OPERATIONS["/v1/edges/canny", "post"]["operationId"] == "edges_canny"


def test_every_operator_is_there():
    assert {f"/v1/{path}" for path in KNOWN} | {"/v1/pipelines", "/v1/batch"} == set(WORK)
    assert {tag["name"] for tag in DOCUMENT["tags"]} == {tag for operation in OPERATIONS.values() for tag in operation["tags"]}


@pytest.mark.parametrize("path", WORK)
def test_work_is_documented_whole(path):
    operation = OPERATIONS[path, "post"]
    assert operation["summary"]
    assert len(operation["description"]) > 60
    for status in ("400", "406", "413", "415", "422", "503", "504"):
        response = DOCUMENT["components"]["responses"][operation["responses"][status]["$ref"].rsplit("/", 1)[1]]
        content = response["content"]["application/problem+json"]
        assert content["schema"]["allOf"][0] == {"$ref": "#/components/schemas/Problem"}
        for code, example in content["examples"].items():
            assert example["value"]["code"] == code
            assert str(example["value"]["status"]) == status
    for parameter in operation["parameters"]:
        assert parameter["description"], parameter["name"]
    answer = operation["responses"]["200"]["content"]["application/json"]
    assert set(answer["schema"]["required"]) <= set(answer["example"])


@pytest.mark.parametrize("path", WORK)
def test_file_pickers_work(path):
    """Swagger UI shows a picker for format: binary, and none for contentMediaType."""
    content = OPERATIONS[path, "post"]["requestBody"]["content"]
    properties = content["multipart/form-data"]["schema"]["properties"]
    if path == "/v1/batch":
        files = properties["files"]
        assert files["type"] == "array"
        assert files["items"] == {"type": "string", "format": "binary"}
    else:
        assert (properties["file"]["type"], properties["file"]["format"]) == ("string", "binary")
        assert content["application/octet-stream"]["schema"] == {"type": "string", "format": "binary"}
    assert "contentMediaType" not in json.dumps(content)
    # A field with a default would be sent beside a query parameter of the same name, and win over it.
    assert all("default" not in schema for schema in properties.values())
