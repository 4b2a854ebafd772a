"""Which questions are asked how often: a deck is dealt round and round by all users of a generator together."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import get_args

from locustfiles.answers import Ask, Form
from locustfiles.images import Picture, pictures
from locustfiles.slo import ScenarioSlo, Size
from locustfiles.target import Operator

Deck = Callable[[Sequence[Operator], ScenarioSlo], list[Ask]]

# Nobody asks for a 12-megapixel picture as JSON; masks, keypoints and numbers of one are ordinary.
_FOR_LARGE = frozenset({"mask", "keypoints", "histogram", "scalar"})
_PREFERRED = "edges/canny"
_FORMS: tuple[Form, ...] = get_args(Form)


def _shuffled(asks: list[Ask]) -> list[Ask]:
    random.Random(len(asks)).shuffle(asks)
    return asks


def realistic(operators: Sequence[Operator], slo: ScenarioSlo) -> list[Ask]:
    """Every operator equally often, sizes as ``slo.sizes`` says: small and medium for each, large dealt among those whose
    answer stays small."""
    deck = [
        Ask(operator, _nth(size, number))
        for operator in operators
        for size in ("small", "medium")
        for number in range(slo.sizes.get(size, 0))
    ]
    light = [operator for operator in operators if operator.kind in _FOR_LARGE] or list(operators)
    large = len(operators) * slo.sizes.get("large", 0)
    deck += [Ask(light[number % len(light)], _nth("large", number)) for number in range(large)]
    return _shuffled(deck)


def once_each(operators: Sequence[Operator], slo: ScenarioSlo) -> list[Ask]:
    """Every operator once, on a small picture, the forms of upload in turn."""
    return [Ask(operator, _nth("small", n), _FORMS[n % len(_FORMS)]) for n, operator in enumerate(operators)]


def one_operator(size: Size) -> Deck:
    """A deck of one operator (Canny where there is one) on pictures of one size, for curves that must not be blurred by
    a mix."""

    def deck(operators: Sequence[Operator], slo: ScenarioSlo) -> list[Ask]:
        operator = preferred(operators)
        return [Ask(operator, picture) for picture in pictures(size)]

    return deck


def each_form(operators: Sequence[Operator], slo: ScenarioSlo) -> list[Ask]:
    """One operator and one picture in the three forms of upload, in turn."""
    return [Ask(preferred(operators), pictures("small")[0], form) for form in _FORMS]


def preferred(operators: Sequence[Operator]) -> Operator:
    """The operator for scenarios that need only one."""
    return next((operator for operator in operators if operator.path == _PREFERRED), operators[0])


def _nth(size: Size, number: int) -> Picture:
    available = pictures(size)
    return available[number % len(available)]
