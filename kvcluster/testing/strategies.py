"""Hypothesis strategies: geometries, shapes, and what a client may ask of a device."""

from __future__ import annotations

from hypothesis import strategies as st

from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.geometry.residency import GroupShape, Shape

layouts = st.sampled_from(list(Layout))


@st.composite
def geometries(draw: st.DrawFn, *, most_layers: int = 4) -> KvGeometry:
    """Small models: one to `most_layers` layers, spread over one or two groups of different heads."""
    layers = draw(st.integers(1, most_layers))
    cut = draw(st.integers(0, layers - 1))
    parts = [tuple(range(cut, layers)), tuple(range(cut))]
    groups = tuple(
        LayerGroup(part, draw(st.integers(1, 3)), draw(st.sampled_from([4, 8, 16]))) for part in parts if part
    )
    return KvGeometry(groups, draw(st.sampled_from([2, 4])))


@st.composite
def shapes(draw: st.DrawFn, *, granule_bytes: int = 4096) -> Shape:
    """One to three groups of a few fragments; strides that divide the granule and strides that do not."""
    strides = st.one_of(st.sampled_from([64, 256, 1024, 4096]), st.integers(1, 3 * granule_bytes))
    groups = st.lists(st.builds(GroupShape, st.integers(1, 4), strides), min_size=1, max_size=3)
    return Shape(tuple(draw(groups)), granule_bytes)


def amounts(most: int) -> st.SearchStrategy[list[int]]:
    """Token counts in the order in which a sequence commits them; not always growing."""
    return st.lists(st.integers(1, most), min_size=1, max_size=8)
