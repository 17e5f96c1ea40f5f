"""The one-bit uploads for an app with a strategy of its own: right on average, and safe against any reply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.app import Message as Letter
from flwr.app.error import Error
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

from bifl import codec
from bifl.core.message import BINARY, FLOAT32, TERNARY, Alphabet, Message
from bifl.deploy.compress import RECORD, OneBit, expand, squeeze
from tests.support.grid import LocalGrid, Node


def test_squeezed_updates_are_right_on_average() -> None:
    generator = np.random.default_rng(0)
    start = [generator.normal(size=(20, 30)).astype(np.float32), np.zeros(5, np.float32), np.array(3)]
    end = [
        start[0] + generator.uniform(-0.01, 0.01, start[0].shape).astype(np.float32),
        np.arange(5, dtype=np.float32),
        np.array(4),
    ]
    data = [squeeze(start, end, [seed]) for seed in range(2000)]
    assert len(data[0]) < 600 / 8 + 130
    mean = np.mean([expand(start, each)[0] for each in data], axis=0)
    width = 1.5 * np.abs(end[0] - start[0]).mean()
    inside = np.abs(end[0] - start[0]) < width
    assert np.abs(mean - end[0])[inside].max() < 5 * width / np.sqrt(2000)
    assert [array.tolist() for array in expand(start, data[0])[1:]] == [[0, 1, 2, 3, 4], 4]
    with pytest.raises(codec.WireError, match=r"other arrays"):
        expand(start[:1], data[0])


# ---- the strategy, whatever a client replies -------------------------------------------------------------------------

START: list[Any] = [np.zeros((3, 4), np.float32), np.zeros(5, np.float32), np.zeros((2, 2), np.float16)]
NAMES = ["conv", "bias", "half"]
scalars = st.one_of(st.integers(), st.floats(), st.sampled_from([2**62, -1, 0, 10**400, 1e300, math.nan, math.inf]))
widths = st.sampled_from([0.0, 0.5, -1.0, 1e9, 1e30, math.nan, math.inf])


def upload(widths: Sequence[float] = (0.5, 0.25), real: float = 1.0, alphabet: Alphabet = BINARY, more: int = 0) -> bytes:
    symbols = np.zeros(16 + more, np.uint8 if alphabet.size else np.float32)
    return codec.encode(Message.of(symbols, alphabet, np.full(5, real, np.float32), np.array(widths, np.float32), sender=0))


def honest(examples: float = 100, data: object = None) -> RecordDict:
    signs: Any = upload() if data is None else data
    metrics = MetricRecord({"num-examples": examples, "loss": 0.5})
    return RecordDict({RECORD: ConfigRecord({"upload": signs}), "metrics": metrics})


def averaged(*contents: RecordDict | Error | None, **options: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """What the real strategy makes of replies."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    strategy = OneBit(fraction_train=1.0, fraction_evaluate=0.0, **options)
    sent = ArrayRecord({name: Array(array) for name, array in zip(NAMES, START, strict=True)})
    grid = LocalGrid({node: Node(node) for node in range(1, 4)})
    (asked, *_) = strategy.configure_train(1, sent, ConfigRecord(), grid)
    replies = []
    for content in contents:
        replies.append(Letter(RecordDict() if content is None else content, reply_to=asked))
        if content is None:
            replies[-1].__dict__["_content"] = None
    return strategy.aggregate_train(1, replies)


def numbers(record: ArrayRecord | None) -> bytes:
    assert record is not None
    arrays = [array.numpy() for array in record.values()]
    assert all(np.all(np.isfinite(array)) for array in arrays)
    return b"".join(array.tobytes() for array in arrays)


changed = st.builds(
    lambda data, metrics, extra: RecordDict(
        {RECORD: ConfigRecord({"upload": data}), "metrics": MetricRecord(metrics), **extra}
    ),
    st.one_of(
        scalars, st.binary(max_size=99), st.text(max_size=9), st.booleans(),
        st.builds(upload, st.lists(widths, max_size=3), widths, st.sampled_from([BINARY, TERNARY, FLOAT32]), st.integers(0, 1)),
    ),
    st.dictionaries(st.sampled_from(["num-examples", "loss", "x"]), scalars | st.lists(st.floats(), max_size=3), max_size=3),
    st.sampled_from([{}, {"a": ArrayRecord({"conv": Array(np.zeros(2))})}, {"b": MetricRecord({"x": 1})}]),
)  # fmt: skip
replies = st.one_of(
    changed,
    st.none(),
    st.builds(Error, st.integers(0, 9), st.text(max_size=900)),
    st.dictionaries(st.sampled_from([RECORD, "metrics", "arrays"]), st.just(ConfigRecord({"upload": 2**62})), max_size=2).map(
        lambda found: RecordDict({**found})
    ),
)


@given(replies, st.integers(0, 2))
def test_any_reply_is_averaged_or_left_out(reply: Any, place: int) -> None:
    others = [honest(), honest()]
    arrays, metrics = averaged(*others[:place], reply, *others[place:])
    assert metrics is not None
    assert all(math.isfinite(value) for value in metrics.values() if isinstance(value, float))
    assert len(numbers(arrays)) == sum(array.nbytes for array in START)


@pytest.mark.parametrize(
    "bad",
    [
        honest(data=2**62), honest(data=[b""]), honest(data=upload([math.nan, 1.0])), honest(data=upload([math.inf, 1.0])),
        honest(data=upload([1.0, 1e9])),  # more than float16 holds
        honest(data=upload(real=math.nan)), honest(data=upload(alphabet=FLOAT32)), honest(data=upload(more=1)), honest(data=b"x"),
        honest(2**40), honest(0), honest(-1), honest(math.nan), honest(math.inf), Error(2, "x\nfinished\x1b[31m" * 99), None,
        RecordDict(), RecordDict({RECORD: MetricRecord({"upload": 1})}),
    ],
    ids=lambda bad: str(bad)[:60],
)  # fmt: skip
def test_a_reply_that_is_left_out_changes_nothing(bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    expected, _ = averaged(honest(), honest())
    with caplog.at_level("INFO", "flwr"):
        found, _ = averaged(honest(), bad, honest())
    assert numbers(found) == numbers(expected)
    (line,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert line.isprintable()
    assert len(line) < 500
    assert averaged(bad, max_examples=1000) == (None, None)  # and the training goes on with what it has


def test_a_large_client_may_be_let_in() -> None:
    assert numbers(averaged(honest(), honest(10**6), honest(), max_examples=10**6)[0])
    assert averaged(honest(), honest(10**6), max_examples=10) == (None, None)
