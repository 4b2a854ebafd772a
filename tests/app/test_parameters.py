from __future__ import annotations

import pytest

from app.parameters import Options, Text, find_operator, parse_operator, parse_steps
from app.problems import InvalidParameter, TooManySteps
from cuda_ops import operators

KNOWN = operators()
CANNY = KNOWN["edges/canny"]


def pointers(refused):
    return [error["pointer"] for error in refused.value.errors]


def test_text_and_json_values_mean_the_same():
    text = {"low": Text("12"), "aperture": Text("5"), "l2_gradient": Text("true"), "orient": Text("False"), "background": Text("000000")}
    json = {"low": 12.0, "aperture": 5, "l2_gradient": True, "orient": False, "background": "000000"}
    assert parse_operator(CANNY, text) == parse_operator(CANNY, json)
    (step,), options = parse_operator(CANNY, json)
    assert step.params == CANNY.params(low=12, aperture=5, l2_gradient=True)
    assert options == Options(orient=False, background="000000")
    assert options.rgb == (0, 0, 0)


def test_defaults_need_nothing():
    (step,), options = parse_operator(CANNY, {})
    assert step.params == CANNY.params()
    assert options == Options()
    assert options.rgb == (255, 255, 255)


@pytest.mark.parametrize(
    ("values", "pointer"),
    [
        ({"low": "12"}, "/params/low"),  # JSON text is not a number, query text is
        ({"low": Text("1,2")}, "/params/low"),
        ({"low": True}, "/params/low"),
        ({"aperture": True}, "/params/aperture"),
        ({"aperture": 3.5}, "/params/aperture"),
        ({"l2_gradient": 1}, "/params/l2_gradient"),
        ({"low": None}, "/params/low"),
        ({"low": [1]}, "/params/low"),
        ({"output": 3}, "/params/output"),
        ({"a/b~c": 1}, "/params/a~1b~0c"),
    ],
)
def test_wrong_values_are_named(values, pointer):
    with pytest.raises(InvalidParameter) as refused:
        parse_operator(CANNY, values)
    assert pointers(refused) == [pointer]


def test_an_unknown_name_gets_the_nearest_known_one():
    with pytest.raises(InvalidParameter, match="did you mean `mask_encoding`"):
        parse_operator(CANNY, {"mask_encodin": "png"})


def test_steps_become_a_chain():
    steps = [{"op": "edges/sobel", "params": {"ksize": 5}, "keep": True}, {"op": "edges/canny"}]
    chain, options = parse_steps(steps, {"orient": Text("false")}, KNOWN, 8)
    assert [(step.operator.path, step.keep) for step in chain] == [("edges/sobel", True), ("edges/canny", True)]
    assert chain[0].params.ksize == 5
    assert not options.orient
    assert parse_steps(Text('[{"op": "edges/canny"}]'), {}, KNOWN, 8)[0][0].operator is CANNY


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        (None, ["/steps"]),
        ([], ["/steps"]),
        ({}, ["/steps"]),
        (Text("[{"), ["/steps"]),
        ([3], ["/steps/0"]),
        ([{}], ["/steps/0/op"]),
        ([{"op": "edges/cany"}], ["/steps/0/op"]),
        ([{"op": ["x"]}], ["/steps/0/op"]),
        ([{"op": "edges/canny", "params": 3}], ["/steps/0/params"]),
        ([{"op": "edges/canny", "keep": "yes"}], ["/steps/0/keep"]),
        ([{"op": "edges/canny", "why": 1}], ["/steps/0/why"]),
        ([{"op": "edges/canny"}, {"op": "edges/sobel", "params": {"ksize": 4, "x": 1}}], ["/steps/1/params/ksize", "/steps/1/params/x"]),
        ([{"op": "edges/sobel", "params": {"orient": False}}], ["/steps/0/params/orient"]),
        ([{"op": "histograms/histogram"}, {"op": "edges/canny"}], ["/steps/0"]),
    ],
)
def test_every_mistake_in_steps_is_named(steps, found):
    with pytest.raises(InvalidParameter) as refused:
        parse_steps(steps, {}, KNOWN, 8)
    assert pointers(refused) == found


def test_parameters_beside_steps_are_refused():
    with pytest.raises(InvalidParameter) as refused:
        parse_steps([{"op": "edges/canny"}], {"low": 3}, KNOWN, 8)
    assert pointers(refused) == ["/params/low"]


def test_steps_are_counted():
    with pytest.raises(TooManySteps) as refused:
        parse_steps([{"op": "edges/canny"}] * 9, {}, KNOWN, 8)
    assert (refused.value.limit, refused.value.measured, refused.value.setting) == (8, 9, "VISION_MAX_STEPS")


def test_operators_are_found_by_path():
    assert find_operator("edges/canny", KNOWN) is CANNY
    with pytest.raises(InvalidParameter, match="did you mean edges/canny"):
        find_operator("canny", KNOWN)
