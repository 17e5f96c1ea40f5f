"""What clients count for: their images, or once each, which is what they do wherever something is to be hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from bifl.core.sums import Weighing
from bifl.deploy.client.operator_choices import permitted
from bifl.deploy.protocol import Refusal
from bifl.engine.loop import loop
from bifl.errors import ConfigError, Refused
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build, serve
from tests.support.federation import quick
from tests.support.secure_round import Table


@pytest.mark.parametrize("algorithm", ["biml", "fedavg"])
def test_all_count_once_under_masks(small: Path, algorithm: str) -> None:
    """By numbers of images, which all know, many a sum of ballots would tell who voted how; one of floats after one step, too."""
    experiment = quick(small, rounds=2, algorithm=algorithm, partition="quantity", batchnorm="average")
    models = {how: list(loop(experiment.changed({"weigh": how})))[-1][1].real.tobytes() for how in ("images", "equal")}
    assert models["images"] != models["equal"]
    *_, (_, secure) = loop(experiment.changed({"secure_sum": True}))
    assert secure.real.tobytes() == models["equal"]


def test_statistics_count_once_too(small: Path) -> None:
    for weigh, weight in (("images", 300), ("equal", 1)):
        setup = build(quick(small, weigh=weigh))
        (statistics,) = setup.run.exchanges[1:]
        assert statistics.open(statistics.form(setup.public)._replace(weight=300), setup.public).weight == weight


def test_nobody_weighs_by_images_under_masks_where_something_is_hidden(small: Path) -> None:
    """Neither server nor client, whatever the other wants."""
    with pytest.raises(ConfigError, match=r"secure_sum=true with weigh=images is for simulations: .*: leave weigh= out"):
        serve(quick(small, secure_sum=True, weigh="images"))
    with pytest.raises(Refusal, match="leave weigh= out"):
        permitted("algorithm=fedavg secure_sum=true weigh=images", (), own_data=True)


def test_private_clients_have_no_weight() -> None:
    with pytest.raises(ConfigError, match=r"with privacy= every client counts once, .*: leave weigh= out"):
        Experiment(algorithm="fedavg", batchnorm="average", privacy="gaussian", weigh="images")


def test_a_client_hides_among_equals_only() -> None:
    """A card of another weight, signed by its client, is refused before anything is dealt."""
    table = Table([1, 1, 100])
    _, private_replies = table.keys(range(3))  # by a server that has all weighed by their images
    with pytest.raises(Refused, match="would count more than once, and all count once here"):
        table.member(0, table.terms._replace(weighing=Weighing.ONCE)).shares(private_replies[0])
    assert table.member(0).shares(private_replies[0])
