"""Published settings and their changes by profile and budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semifine.config import preset_names, read_preset, resolve
from semifine.config.autotune import ema_is_too_slow
from semifine.data.catalog import Split
from semifine.data.sources import load_catalog, synthetic
from semifine.errors import UserError
from semifine.experiments.recipes import (
    BUDGETS,
    INITS,
    Conditions,
    budget_factor,
    compose,
    count_unlabeled,
    default_profile,
    profile_names,
    recipe_names,
)

PAPER = Conditions("synthetic", "scratch")
EXPERTS = Conditions("synthetic", "imagenet")

# Unlabeled images of the published data sets, and the steps of MoCo and of SimMatch from scratch on them.
PASSES = {
    ("semi_aves", "in"): (26_640, 83_200, 199_200),
    ("semi_aves", "inout"): (148_848, 464_800, 1_116_000),
    ("semi_fungi", "in"): (13_166, 40_800, 98_400),
    ("semi_fungi", "inout"): (78_037, 243_200, 584_400),
}


def pretend_unlabeled(monkeypatch: pytest.MonkeyPatch, images: int) -> None:
    """Pretends that the synthetic data set has a number of unlabeled images."""
    monkeypatch.setattr("semifine.experiments.recipes.count_unlabeled", lambda _: images)


# The SoC paper and Su et al., Semi-Aves: iterations, batch, learning rate, weight decay
PUBLISHED = {
    ("supervised", "scratch"): (50_000, 64, 0.03, 3e-3),
    ("supervised", "imagenet"): (15_000, 64, 0.001, 1e-4),
    ("oracle", "scratch"): (50_000, 64, 0.03, 3e-3),
    ("oracle", "imagenet"): (15_000, 64, 0.001, 1e-4),
    ("pseudo_label", "scratch"): (100_000, 30, 0.03, 1e-4),
    ("pseudo_label", "imagenet"): (10_000, 30, 0.001, 1e-4),
    ("curriculum", "scratch"): (50_000, 64, 0.03, 3e-3),
    ("curriculum", "imagenet"): (10_000, 64, 0.001, 1e-4),
    ("self_training", "scratch"): (50_000, 32, 0.03, 1e-3),
    ("self_training", "imagenet"): (10_000, 32, 0.01, 1e-4),
    ("moco", "scratch"): (83_200, 256, 0.03, 1e-4),
    ("moco", "imagenet"): (83_200, 256, 0.03, 1e-4),
    ("fixmatch", "scratch"): (400_000, 32, 0.01, 5e-4),
    ("fixmatch", "imagenet"): (50_000, 32, 0.001, 5e-4),
    ("flexmatch", "scratch"): (400_000, 32, 0.03, 3e-4),
    ("flexmatch", "imagenet"): (50_000, 32, 0.003, 3e-4),
    ("simmatch", "scratch"): (199_200, 32, 0.01, 1e-4),
    ("simmatch", "imagenet"): (132_800, 32, 0.001, 1e-4),
    ("soc", "scratch"): (400_000, 32, 0.01, 5e-4),
    ("soc", "imagenet"): (50_000, 32, 0.001, 5e-4),
}


# The same for all starts: schedule, Nesterov, decay_exempt, ema, mu
OPTIMIZERS = {
    "supervised": ("half_cosine", False, "none", 0.0, None),
    "oracle": ("half_cosine", False, "none", 0.0, None),
    "pseudo_label": ("half_cosine", False, "none", 0.0, 1),
    "curriculum": ("half_cosine", False, "none", 0.0, None),
    "self_training": ("half_cosine", False, "none", 0.0, 1),
    "moco": ("half_cosine_floor", False, "none", 0.999, 1),
    "fixmatch": ("cos716", True, "bn", 0.999, 5),
    "flexmatch": ("cos716", True, "bn+bias", 0.999, 5),
    "simmatch": ("half_cosine", True, "none", 0.999, 5),
    "soc": ("cos716", True, "bn", 0.999, 5),
}

# Horizon (None: the run) and warm-up of those that have any.
SCHEDULES = {
    ("fixmatch", "scratch"): (2**20, 0.0),
    ("fixmatch", "imagenet"): (None, 0.1),
    ("simmatch", "scratch"): (None, 5 / 1200),
    ("simmatch", "imagenet"): (None, 5 / 800),
    ("soc", "scratch"): (2**20, 0.0),
    ("soc", "imagenet"): (None, 0.1),
}

# After MoCo, where that changes anything: iterations, learning rate, weight decay, horizon, warm-up
AFTER_MOCO = {
    ("supervised", "scratch"): (10_000, 0.01, 1e-3, None, 0.0),
    ("supervised", "imagenet"): (10_000, 0.001, 1e-3, None, 0.0),
    ("fixmatch", "scratch"): (200_000, 0.01, 5e-4, None, 0.1),
    ("soc", "scratch"): (200_000, 0.01, 5e-4, None, 0.1),
}


@pytest.mark.parametrize(("recipe", "init"), PUBLISHED)
def test_the_paper_profile_has_the_published_numbers(recipe: str, init: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_unlabeled(monkeypatch, 26_640)
    train = resolve([compose(recipe, Conditions("synthetic", init))]).train
    assert (train.iterations, train.batch_size, train.lr, train.weight_decay) == PUBLISHED[recipe, init]
    schedule, nesterov, decay_exempt, ema, mu = OPTIMIZERS[recipe]
    assert (train.schedule, train.nesterov, train.decay_exempt, train.ema) == (schedule, nesterov, decay_exempt, ema)
    assert train.mu == mu or mu is None, "None: the method sees no unlabeled images"
    horizon, warmup = SCHEDULES.get((recipe, init), (None, 0.0))
    assert (train.horizon, train.warmup) == (horizon, pytest.approx(warmup, abs=5e-6))
    assert (train.backbone, train.image_size, train.momentum) == ("resnet50.tv_in1k", 224, 0.9)
    assert (train.zero_init_last, train.stored_side) == (False, 500)


@pytest.mark.parametrize(("recipe", "init"), [pair for pair in PUBLISHED if pair[0] not in ("moco", "oracle")])
def test_after_moco_only_published_settings_change(recipe: str, init: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_unlabeled(monkeypatch, 26_640)
    conditions = Conditions("synthetic", init)
    if (recipe, init) not in AFTER_MOCO:
        assert compose(recipe, conditions, after_moco=True) == compose(recipe, conditions)
        return
    train = resolve([compose(recipe, conditions, after_moco=True)]).train
    numbers = (train.iterations, train.lr, train.weight_decay, train.horizon, train.warmup)
    assert numbers == AFTER_MOCO[recipe, init]
    assert (train.schedule, train.nesterov, train.decay_exempt, train.ema) == OPTIMIZERS[recipe][:4]


@pytest.mark.parametrize(
    ("preset", "recipe", "conditions"),
    [
        ("supervised-paper", "supervised", PAPER),
        ("oracle-paper", "oracle", PAPER),
        ("pseudo-label-paper", "pseudo_label", PAPER),
        ("curriculum-paper", "curriculum", PAPER),
        ("curriculum-official-code", "curriculum-official-code", PAPER),
        ("self-training-paper", "self_training", PAPER),
        ("moco-v2", "moco", PAPER),
        ("fixmatch-matched", "fixmatch", PAPER),
        ("fixmatch-matched-pretrained", "fixmatch", EXPERTS),
        ("flexmatch-paper", "flexmatch", PAPER),
        ("simmatch-paper", "simmatch", PAPER),
        ("soc-paper", "soc", PAPER),
        ("soc-paper-pretrained", "soc", EXPERTS),
    ],
)
def test_presets_and_recipes_agree(
    preset: str, recipe: str, conditions: Conditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_unlabeled(monkeypatch, 26_640)
    of_preset, of_recipe = (resolve([layer]) for layer in (read_preset(preset), compose(recipe, conditions)))
    methods = [settings.as_dict()["method"] for settings in (of_preset, of_recipe)]
    for method in methods:
        method.pop("refresh", None)  # up to 1,000 classes "auto" is the paper's "occurring"
    assert methods[0] == methods[1]
    # others come from the profile, the data set or the stage
    for key in (
        *("iterations", "batch_size", "mu", "lr", "weight_decay", "nesterov", "decay_exempt", "ema"),
        *("schedule", "horizon", "warmup", "evaluate_every"),
    ):
        assert getattr(of_preset.train, key) == getattr(of_recipe.train, key), key


@pytest.mark.parametrize(("data", "unlabeled"), PASSES)
def test_passes_are_counted_in_steps_of_the_data_set(
    data: str, unlabeled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, moco, simmatch = PASSES[data, unlabeled]
    pretend_unlabeled(monkeypatch, images)
    conditions = Conditions(data, unlabeled=unlabeled)
    assert [compose(recipe, conditions)["iterations"] for recipe in ("moco", "simmatch")] == [moco, simmatch]


def test_a_pass_sees_all_unlabeled_images_and_no_others() -> None:
    for unlabeled in ("in", "inout"):
        catalog = load_catalog("synthetic", synthetic.Settings(unlabeled=unlabeled))  # type: ignore[arg-type]
        assert count_unlabeled(Conditions("synthetic", unlabeled=unlabeled)) == len(catalog.rows(Split.UNLABELED))


def test_data_settings_are_in_every_run() -> None:
    conditions = Conditions("synthetic", profile="small", data_settings=(("unlabeled_per_class", "9"),))
    assert count_unlabeled(conditions) == 9 * 40
    assert compose("soc", conditions)["data.unlabeled_per_class"] == "9"


def test_data_set_smaller_than_a_batch_gives_one_step_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_unlabeled(monkeypatch, 100)
    assert compose("moco", PAPER)["iterations"] == 800


# What the finished runs of the table on Semi-CUB were trained with: iterations, batch, mu, learning rate.
SEMI_CUB = {
    "supervised": (900, 64, None, 0.01),
    "oracle": (900, 64, None, 0.01),
    "pseudo_label": (600, 30, 1, 0.01),
    "curriculum": (600, 64, None, 0.01),
    "self_training": (600, 32, 1, 0.03),
    "fixmatch": (3000, 32, 5, 0.01),
    "flexmatch": (3000, 32, 5, 0.03),
    "simmatch": (3000, 32, 5, 0.01),
    "soc": (3000, 32, 5, 0.01),
    "moco": (720, 256, 1, 0.03),
}


@pytest.mark.parametrize("recipe", SEMI_CUB)
def test_settings_of_the_semi_cub_table(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_unlabeled(monkeypatch, 3885)
    conditions = Conditions("semi_cub:/data", "imagenet", profile="lite0", budget="3000")
    settings = compose(recipe, conditions)
    numbers = tuple(settings.get(key) for key in ("iterations", "batch_size", "mu"))
    assert (*numbers, pytest.approx(settings["lr"])) == SEMI_CUB[recipe]
    after = {"supervised": 600, "self_training": 600, "pseudo_label": 600, "curriculum": 600}
    if recipe not in ("moco", "oracle"):
        assert compose(recipe, conditions, after_moco=True)["iterations"] == after.get(recipe, 3000)


@pytest.mark.parametrize("profile", profile_names())
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("unlabeled", ["in", "inout"])
def test_every_composition_is_a_valid_run(recipe: str, init: str, profile: str, unlabeled: str) -> None:
    conditions = Conditions("synthetic", init, unlabeled, seed=2, profile=profile, budget="tiny")
    resolved = resolve([compose(recipe, conditions)])
    assert resolved.train.seed == 2
    assert resolved.data_settings.unlabeled == unlabeled
    assert resolved.train.supervised_warmup == 0, "the preset of the data set is no part of a recipe"


def test_a_budget_scales_all_steps_alike() -> None:
    full, small = PAPER, Conditions("synthetic", "scratch", budget="4000")
    assert budget_factor(small) == pytest.approx(0.01)
    for recipe in recipe_names():
        whole, part = compose(recipe, full), compose(recipe, small)
        assert part["iterations"] == pytest.approx(whole["iterations"] * 0.01, abs=1)
        if "horizon" in whole:
            assert part["horizon"] == pytest.approx(whole["horizon"] * 0.01, abs=1)


@pytest.mark.parametrize(
    ("recipe", "conditions", "after_moco", "interval"),
    [
        ("soc", PAPER, False, 2000),
        ("soc", PAPER, True, 1000),
        ("soc", EXPERTS, False, 500),
        ("supervised", PAPER, False, 200),
        ("curriculum", EXPERTS, False, 100),
    ],
)
def test_full_budget_has_the_published_evaluation_interval(
    recipe: str, conditions: Conditions, after_moco: bool, interval: int
) -> None:
    assert compose(recipe, conditions, after_moco)["evaluate_every"] == interval
    assert "evaluate_every" not in compose(recipe, replace(conditions, budget="3000"), after_moco)


@pytest.mark.parametrize("profile", profile_names())
@pytest.mark.parametrize("recipe", recipe_names())
def test_short_runs_average_a_tenth_of_their_steps(recipe: str, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_unlabeled(monkeypatch, 3885)
    conditions = Conditions("synthetic", "imagenet", profile=profile)
    published = compose(recipe, conditions)["ema"]
    assert published in (0.0, 0.99, 0.999)
    for budget in ("1", "tiny", "3000", "6000"):
        settings = compose(recipe, replace(conditions, budget=budget))
        tenth = 1 - 1 / max(settings["iterations"] / 10, 2)
        assert settings["ema"] == pytest.approx(min(published, tenth), abs=5e-5)


def test_presets_of_short_runs_average_a_tenth_of_their_steps() -> None:
    for preset in preset_names():
        train = resolve([{"method.name": "soc"}, read_preset(preset)]).train
        assert not ema_is_too_slow(train.ema, train.iterations), preset


def test_small_profiles_give_methods_with_two_views_equal_steps() -> None:
    conditions = Conditions("synthetic", "imagenet", profile="lite0", budget="3000")
    steps = {compose(name, conditions)["iterations"] for name in ("fixmatch", "flexmatch", "simmatch", "soc")}
    assert steps == {3000}
    assert compose("soc", conditions)["lr"] == pytest.approx(0.01)


@pytest.mark.parametrize("recipe", ["soc", "fixmatch", "simmatch", "supervised"])
def test_cifar_has_the_usual_settings(recipe: str) -> None:
    assert default_profile("cifar10:/data") == default_profile("cifar100:/data") == "cifar"
    conditions = Conditions("synthetic", profile="cifar")
    train = resolve([compose(recipe, conditions)]).train
    assert (train.backbone, train.image_size, train.stored_side) == ("wrn_28_2", 32, 32)
    assert (train.iterations, train.batch_size, train.mu) == (2**20, 64, 7)
    assert (train.lr, train.weight_decay, train.schedule, train.ema) == (0.03, 5e-4, "cos716", 0.999)
    assert train.horizon is None
    assert compose(recipe, replace(conditions, budget="3000"))["iterations"] == 3000


@pytest.mark.parametrize("budget", ["huge", "0", "-5", "1.5"])
def test_wrong_budget_is_an_error(budget: str) -> None:
    with pytest.raises(UserError, match="budget must be one of full, small, tiny"):
        compose("soc", Conditions("synthetic", budget=budget))


def test_named_budgets() -> None:
    assert [budget_factor(Conditions("synthetic", budget=name)) for name in BUDGETS] == [1.0, 3000 / 4e5, 400 / 4e5]


def test_the_published_data_sets_get_the_published_network() -> None:
    assert default_profile("semi_aves:/data") == "paper"
    assert default_profile("semi_cub:/data") == "lite0"
    assert default_profile("synthetic") == "small"
