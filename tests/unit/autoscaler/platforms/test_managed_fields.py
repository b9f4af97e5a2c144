"""Managed fields are cut out of an API server's JSON, and nothing else ever is."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.platforms.kubernetes.managed_fields import without_managed_fields
from tests.doubles.kubernetes.functions import put, spec
from tests.doubles.kubernetes.running import Running
from tests.parameters import examples

TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from([',"managedFields":[', ']},"spec":', '],"', '"metadata":{', "\\", '"', "}]}", "f:x"]),
)
FIELDS = st.recursive(
    st.just({}), lambda inner: st.dictionaries(TEXTS.map(lambda text: f"k:{text}"), inner, max_size=3), max_leaves=6
)
"""``fieldsV1``: objects in objects."""
OWNERS = st.lists(st.fixed_dictionaries({"manager": TEXTS, "fieldsV1": FIELDS}), max_size=3)
VALUES = st.recursive(
    TEXTS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)), max_leaves=6
)
LISTS = st.lists(TEXTS, max_size=2)


@st.composite
def objects(draw: st.DrawFn) -> dict[str, Any]:
    """As an API server writes them, or with members of objects in another order, or with some of them missing."""
    members = {
        "name": draw(TEXTS),
        "finalizers": draw(LISTS),
        "annotations": draw(VALUES),
        "managedFields": draw(OWNERS),
    }
    names = draw(st.one_of(st.just(list(members)), st.permutations(list(members))))
    names = names[: draw(st.integers(0, len(names)))] if draw(st.booleans()) else names
    metadata = {name: members[name] for name in names}
    parts = {"metadata": metadata, "spec": draw(VALUES), "status": {"metadata": draw(VALUES)}}
    order = draw(st.one_of(st.just(list(parts)), st.permutations(list(parts))))
    return {name: parts[name] for name in order}


def bare(document: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    return {**document, "metadata": metadata}


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(st.lists(objects(), max_size=4))
def test_whatever_an_object_holds_nothing_but_its_managed_fields_is_cut(items: list[dict[str, Any]]) -> None:
    page = orjson.loads(without_managed_fields(orjson.dumps({"metadata": {}, "items": items})))
    assert len(page["items"]) == len(items)
    for got, given_one in zip(page["items"], items, strict=True):
        assert got in (given_one, bare(given_one))


def served(number: int, **more: Any) -> dict[str, Any]:
    owners = [{"manager": "kubelet", "fieldsV1": {"f:spec": {'k:{"name":"a},\\"spec\\":"}': {".": {}}}}}]
    metadata = {"name": f"a-{number}", "labels": {"a": ',"managedFields":['}, **more, "managedFields": owners}
    return {"metadata": metadata, "spec": {"replicas": number}, "status": {}}


def test_of_objects_in_an_api_server_s_order_all_managed_fields_are_cut() -> None:
    items = [served(number, finalizers=["a", "b"]) for number in range(5)]
    page = without_managed_fields(orjson.dumps({"items": items}))
    assert orjson.loads(page)["items"] == [bare(one) for one in items] and b"fieldsV1" not in page


@pytest.mark.parametrize(
    "document",
    [
        {"metadata": {"managedFields": [], "ownerReferences": [{"uid": "1"}]}, "spec": {}},
        {"metadata": {"name": "a", "managedFields": [{}], "ownerReferences": [{"uid": "1"}]}, "spec": {}},
        {"items": [{"metadata": {"name": "a", "managedFields": [{}]}, "status": {}}, served(1)]},
        {"metadata": {"name": "a", "managedFields": [{}]}},
        {"items": [{"metadata": {"name": "a", "managedFields": []}, "status": ""}, {"status": [], "spec": []}]},
        {"metadata": {"name": "a", "managedFields": [{"manager": "a]"}]}, "spec": {}},
        {"metadata": {"name": "a", "managedFields": [{"a": {"b": [1]}, "spec": 1}]}, "spec": {}},
    ],
    ids=["first", "others after them", "no spec", "nothing after", "another's spec", "a bracket in a name", "arrays"],
)
def test_managed_fields_that_do_not_stand_where_an_api_server_writes_them_are_left(document: dict[str, Any]) -> None:
    assert without_managed_fields(orjson.dumps(document)) == orjson.dumps(document)


def test_the_double_s_objects_have_theirs_where_an_api_server_writes_them(double: Running) -> None:
    put(double, spec("m-expert-0-0"))
    document = double.deployment("m-expert-0-0")
    assert document["metadata"]["managedFields"]
    text = orjson.dumps({key: document[key] for key in ("metadata", "spec", "status")})
    assert orjson.loads(without_managed_fields(text)) == bare(orjson.loads(text))
