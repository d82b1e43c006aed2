"""Logistic regression compared with SciPy and with conditions that its solution fulfills."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from semifine.features.probe import (
    LabeledFeatures,
    Linear,
    Scaling,
    SelfTraining,
    UnlabeledFeatures,
    Whitening,
    class_weights,
    cross_validate,
    fit_logistic_regression,
    fit_probe,
    soft_labels,
    stratified_folds,
)
from semifine.inference.calibration import calibrate, energy_score


def blobs(
    per_class: int = 12, classes: int = 3, seed: int = 0, spread: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns features ``(n, 5)`` around one center per class, and their classes."""
    random = torch.Generator().manual_seed(seed)
    centers = 2 * torch.randn(classes, 5, generator=torch.Generator().manual_seed(7))
    label = torch.arange(classes).repeat_interleave(per_class)
    return centers[label] + spread * torch.randn(len(label), 5, generator=random), label


def labeled_features(features: torch.Tensor, label: torch.Tensor) -> LabeledFeatures:
    return LabeledFeatures((features,), label, int(label.max()) + 1)


@pytest.mark.parametrize("strength", [0.1, 3.0])
def test_equals_scipys_minimum(strength: float) -> None:
    features, label = blobs()
    weight = torch.linspace(0.5, 2, len(label))
    target = torch.nn.functional.one_hot(label, 3).float() * 0.9 + 0.1 / 3

    def objective(flat: np.ndarray) -> float:
        matrix, bias = flat[:15].reshape(3, 5), flat[15:]
        losses = -(target.numpy() * log_softmax(features.numpy() @ matrix.T + bias, axis=1)).sum(axis=1)
        return float(strength * (weight.numpy() * losses).sum() + (matrix**2).sum() / 2)

    expected = minimize(objective, np.zeros(18), tol=1e-10).x
    fitted = fit_logistic_regression(features, target, weight, strength, max_steps=500)
    found = torch.cat([fitted.weight.flatten(), fitted.bias - fitted.bias.mean()]).numpy()
    expected[15:] -= expected[15:].mean()  # the loss does not depend on the mean of the bias
    assert found == pytest.approx(expected, abs=2e-3)


def test_scaling_folds_into_the_layer() -> None:
    features, label = blobs()
    scaling = Scaling.of(features)
    scaled = scaling.apply(features)
    assert scaled.square().sum(dim=1).mean().item() == pytest.approx(1.0)
    probe = fit_logistic_regression(scaled, torch.nn.functional.one_hot(label, 3).float())
    torch.testing.assert_close(scaling.fold_into(probe).logits(features), probe.logits(scaled), rtol=1e-4, atol=1e-4)


def test_folds_contain_every_class_and_keep_single_images_for_training() -> None:
    label = torch.tensor([0] * 10 + [1] * 5 + [2] * 7 + [3])
    folds = stratified_folds(label, seed=1)
    assert folds[-1] == -1
    assert folds.max() == 4
    for name, count in ((0, 2), (1, 1)):
        assert torch.bincount(folds[label == name]).tolist() == [count] * 5
    assert (stratified_folds(torch.arange(4)) == -1).all(), "nothing can be held out"


def test_held_out_labels_do_not_affect_their_own_predictions() -> None:
    features, label = blobs()
    folds = stratified_folds(label)
    poisoned = torch.where(folds == 0, (label + 1) % 3, label)
    unlabeled, _ = blobs(seed=3)
    for more in (None, UnlabeledFeatures.of(unlabeled)):
        clean = cross_validate(labeled_features(features, label), folds, [3.0], more)[3.0]
        other = cross_validate(labeled_features(features, poisoned), folds, [3.0], more)[3.0]
        assert torch.equal(clean.logits[folds == 0], other.logits[folds == 0])
        assert not torch.equal(clean.logits[folds == 1], other.logits[folds == 1])


def test_soft_labels_divide_by_the_mean_and_sharpen() -> None:
    probs = torch.tensor([[0.8, 0.2], [0.6, 0.4]])
    expected = []
    for row in probs.tolist():
        values = [(value / mean**0.5) ** 1.5 for value, mean in zip(row, (0.7, 0.3), strict=True)]
        expected.append([value / sum(values) for value in values])
    assert soft_labels(probs, SelfTraining()).tolist() == pytest.approx(np.array(expected), abs=1e-6)


def test_whitening_equalizes_variances_and_folds_into_the_layer() -> None:
    features, label = blobs(spread=3.0)
    stretched = features * torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])

    def spread_of_variances(values: torch.Tensor) -> float:
        variances = torch.linalg.eigvalsh(torch.cov(values.t()))
        return float(variances.max() / variances.min())

    spreads = {power: spread_of_variances(Whitening.of(stretched, power).apply(stretched)) for power in (0.0, 0.5, 1.0)}
    assert spreads[0.0] == pytest.approx(spread_of_variances(stretched), rel=1e-3)
    assert spreads[0.5] == pytest.approx(spreads[0.0] ** 0.5, rel=0.15)
    assert spreads[1.0] < 1.2

    whitening = Whitening.of(stretched)
    whitened = whitening.apply(stretched)
    assert whitened.square().sum(dim=1).mean().item() == pytest.approx(1.0, rel=1e-3)
    probe = fit_logistic_regression(whitened, torch.nn.functional.one_hot(label, 3).float())
    torch.testing.assert_close(
        whitening.fold_into(probe).logits(stretched), probe.logits(whitened), rtol=1e-3, atol=1e-3
    )


def test_neighbors_and_smoothing_equal_a_slow_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semifine.features.probe.CHUNK", 7)
    features, _ = blobs(per_class=7)
    found = UnlabeledFeatures.of(features, count=4)
    unit = (features / features.norm(dim=1, keepdim=True)).double().numpy()
    probs = torch.softmax(torch.randn(len(features), 3, generator=torch.Generator().manual_seed(1)), dim=1)
    settings = SelfTraining(smoothing=2.0, smoothing_rounds=2)
    smoothed = probs.double().numpy()
    for _ in range(settings.smoothing_rounds):
        rows = []
        for row, own in enumerate(probs.double().numpy()):
            cosine = unit @ unit[row]
            cosine[row] = -np.inf
            nearest = np.argsort(-cosine)[:4]
            assert set(nearest) == set(found.neighbors[row].tolist())
            weight = np.maximum(cosine[nearest], 0)
            mean = (weight[:, None] * smoothed[nearest]).sum(axis=0) / weight.sum() if weight.sum() else np.zeros(3)
            values = own * np.exp(2.0 * mean)
            rows.append(values / values.sum())
        smoothed = np.array(rows)
    torch.testing.assert_close(found.smooth(probs, settings).double(), torch.from_numpy(smoothed), rtol=1e-5, atol=1e-6)


def test_a_single_unlabeled_image_has_no_neighbors() -> None:
    features, label = blobs()
    alone = UnlabeledFeatures.of(features[:1])
    assert alone.neighbors.shape == (1, 0)
    probs = torch.tensor([[0.7, 0.2, 0.1]])
    torch.testing.assert_close(alone.smooth(probs, SelfTraining()), probs)
    assert torch.isfinite(fit_probe(labeled_features(features, label), 3.0, alone).weight).all()


def test_self_training_uses_the_unlabeled_images() -> None:
    """Three labels per class, 80 unlabeled images: the mean over several draws improves."""
    plain, trained = [], []
    test, truth = blobs(per_class=200, seed=99, spread=2.2)
    for seed in range(6):
        features, label = blobs(per_class=3, seed=seed, spread=2.2)
        unlabeled, _ = blobs(per_class=80, seed=50 + seed, spread=2.2)
        labeled = labeled_features(features, label)
        for accuracies, more in ((plain, None), (trained, UnlabeledFeatures.of(unlabeled))):
            probe = fit_probe(labeled, 1.0, more)
            accuracies.append((probe.logits(test).argmax(dim=1) == truth).double().mean().item())
    assert np.mean(trained) > np.mean(plain)


def test_long_tails_are_balanced_beyond_a_ratio_of_five() -> None:
    assert class_weights(torch.tensor([0] * 5 + [1]), 2).unique().tolist() == [1.0]
    label = torch.tensor([0] * 12 + [1] * 2 + [2] * 4)
    weights = class_weights(label, 3)
    sums = [weights[label == name].sum().item() for name in range(3)]
    assert sums == pytest.approx([6.0, 6.0, 6.0])


def test_rows_that_are_not_fitted_stay() -> None:
    """The others reach the minimum that an optimizer of these rows alone finds."""
    random = torch.Generator().manual_seed(0)
    features, label = torch.randn(40, 5, generator=random), torch.arange(40) % 4
    target = torch.nn.functional.one_hot(label, 4).float()
    start = Linear(torch.randn(4, 5, generator=random), torch.randn(4, generator=random))
    fitted = torch.tensor([False, True, False, True])
    probe = fit_logistic_regression(features, target, initial=start, fitted=fitted)
    assert torch.equal(probe.weight[~fitted], start.weight[~fitted])
    assert torch.equal(probe.bias[~fitted], start.bias[~fitted])

    def objective(rows: np.ndarray) -> float:
        weight, bias = start.weight.double().numpy().copy(), start.bias.double().numpy().copy()
        weight[fitted.numpy()], bias[fitted.numpy()] = rows[:10].reshape(2, 5), rows[10:]
        losses = -log_softmax(features.double().numpy() @ weight.T + bias, axis=1)[np.arange(40), label.numpy()]
        return float(30 * losses.sum() + (weight**2).sum() / 2)

    best = minimize(objective, np.zeros(12)).x
    assert np.allclose(probe.weight[fitted].numpy().ravel(), best[:10], atol=2e-3)
    assert np.allclose(probe.bias[fitted].numpy(), best[10:], atol=2e-3)


def test_scaling_unfolds_what_it_folds() -> None:
    features = torch.randn(7, 3)
    scaling, raw = Scaling.of(features), Linear(torch.randn(2, 3), torch.randn(2))
    scaled = scaling.unfold_from(raw)
    torch.testing.assert_close(scaled.logits(scaling.apply(features)), raw.logits(features))
    for value, again in zip(raw, scaling.fold_into(scaled), strict=True):
        torch.testing.assert_close(value, again)


def test_thresholds_from_cross_fitting_hold_on_new_images() -> None:
    """Eight labels in each of six classes and no validation images: one false alarm in ten, nine in ten covered."""
    alarms, covered, images = 0, 0, 0
    for seed in range(8):
        features, label = blobs(per_class=8, classes=6, seed=seed, spread=1.2)
        new, new_label = blobs(per_class=40, classes=6, seed=100 + seed, spread=1.2)
        labeled = labeled_features(features, label)
        cv = cross_validate(labeled, stratified_folds(label), [3.0])[3.0]
        calibration = calibrate(cv.logits.numpy(), cv.label.numpy())
        logits = fit_probe(labeled, 3.0).logits(new).numpy()
        flags = calibration.is_ood(energy_score(logits), false_alarms=0.1)
        sets = calibration.conformal_set(calibration.probabilities(logits), coverage=0.9)
        assert flags is not None
        assert sets is not None
        alarms += int(flags.sum())
        covered += int(sets[np.arange(len(new)), new_label.numpy()].sum())
        images += len(new)
    assert 0.02 < alarms / images < 0.18
    assert covered / images > 0.85
