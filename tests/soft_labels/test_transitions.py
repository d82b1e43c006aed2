import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semifine.soft_labels.transitions import TransitionTracker

K, M = 5, 6


@st.composite
def streams(draw):
    """Batches of (index, prediction) lists of varying length over few samples, so that indices repeat."""
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=8))
    return [
        draw(st.lists(st.tuples(st.integers(0, M - 1), st.integers(0, K - 1)), min_size=size, max_size=size))
        for size in sizes
    ]


def track(tracker, batch):
    index, prediction = zip(*batch, strict=True)
    return tracker.update(torch.tensor(index), torch.tensor(prediction))


def sequential(stream, window):
    """Computes the bank and the dense sum of the last ``window`` batches sample by sample."""
    bank = [-1] * M
    per_batch = []
    for batch in stream:
        batch_counts = torch.zeros(K, K, dtype=torch.int32)
        for index, prediction in batch:
            if bank[index] != -1 and bank[index] != prediction:
                batch_counts[bank[index], prediction] += 1
            bank[index] = prediction
        per_batch.append(batch_counts)
    return bank, per_batch, torch.stack(per_batch[-window:]).sum(dim=0)


@settings(max_examples=80, deadline=None)
@given(streams(), st.integers(1, 4))
def test_running_sum_is_the_dense_sum_of_the_window(stream, window):
    tracker = TransitionTracker(K, M, window)
    for num_batches, batch in enumerate(stream, start=1):
        track(tracker, batch)
        bank, _, dense = sequential(stream[:num_batches], window)
        assert tracker.bank.tolist() == bank
        assert torch.equal(tracker.counts, dense.int())
        assert tracker.counts.diagonal().eq(0).all()


@settings(max_examples=40, deadline=None)
@given(streams())
def test_transitions_per_batch_never_exceed_the_batch(stream):
    tracker = TransitionTracker(K, M, window=3)
    for num_batches, batch in enumerate(stream, start=1):
        codes = track(tracker, batch)
        _, per_batch, _ = sequential(stream[:num_batches], window=3)
        assert int((codes >= 0).sum()) == int(per_batch[-1].sum()) <= len(batch)


def test_first_prediction_is_not_a_transition():
    tracker = TransitionTracker(K, M)
    track(tracker, [(d, d % K) for d in range(M)])
    assert tracker.counts.sum() == 0
    assert tracker.bank.tolist() == [d % K for d in range(M)]


def test_unchanged_prediction_is_not_a_transition():
    tracker = TransitionTracker(K, M)
    track(tracker, [(0, 3)])
    track(tracker, [(0, 3)])
    assert tracker.counts.sum() == 0


def test_changed_prediction_is_one_transition():
    tracker = TransitionTracker(K, M)
    track(tracker, [(0, 3)])
    track(tracker, [(0, 1)])
    assert tracker.counts.nonzero().tolist() == [[3, 1]]
    assert tracker.counts[3, 1] == 1


def test_repeated_index_in_a_batch_is_processed_sequentially():
    tracker = TransitionTracker(K, M)
    codes = track(tracker, [(2, 0), (2, 1), (4, 3), (2, 1), (2, 0)])
    assert codes.tolist() == [-1, 0 * K + 1, -1, -1, 1 * K + 0]
    assert tracker.bank.tolist() == [-1, -1, 0, -1, 3, -1]


def test_oldest_batch_is_subtracted():
    tracker = TransitionTracker(K, M, window=2)
    for prediction in (0, 1, 2, 3):
        track(tracker, [(0, prediction)])
    assert tracker.counts.nonzero().tolist() == [[1, 2], [2, 3]]


def test_ring_widens_and_keeps_its_content():
    tracker = TransitionTracker(K, M, window=3)
    assert tracker.ring.shape == (3, 0)
    track(tracker, [(0, 0)])
    track(tracker, [(0, 1), (1, 1)])
    track(tracker, [(0, 2), (1, 2), (2, 2)])
    assert tracker.ring.shape == (3, 3)
    assert tracker.ring.tolist() == [[-1, -1, -1], [1, -1, -1], [K + 2, K + 2, -1]]


def test_state_dict_restores_a_ring_of_any_width():
    saved, fresh = TransitionTracker(K, M, window=3), TransitionTracker(K, M, window=3)
    track(saved, [(0, 0), (1, 1), (2, 2)])
    track(fresh, [(5, 0)])
    fresh.load_state_dict(saved.state_dict())
    for name, value in saved.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value), name
    batch = [(0, 4), (1, 4), (1, 0), (2, 2), (3, 3)]
    assert torch.equal(track(saved, batch), track(fresh, batch))
    assert torch.equal(saved.counts, fresh.counts)


def test_loading_another_window_raises_an_error():
    saved = TransitionTracker(K, M, window=3).state_dict()
    with pytest.raises(RuntimeError, match="ring"):
        TransitionTracker(K, M, window=4).load_state_dict(saved)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (([0, M], [0, 0]), rf"index must be between 0 and {M - 1}"),
        (([0, -1], [0, 0]), "index must be between"),
        (([0, 1], [0, K]), rf"prediction must be between 0 and {K - 1}"),
        (([0, 1], [0]), "same length"),
        (([], []), "non-empty"),
    ],
)
def test_invalid_batches_raise_an_error(batch, message):
    index, prediction = (torch.tensor(part, dtype=torch.int64) for part in batch)
    with pytest.raises(ValueError, match=message):
        TransitionTracker(K, M).update(index, prediction)


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [((1, M, 5), "num_classes"), ((50_000, M, 5), "num_classes"), ((K, 0, 5), "num_samples"), ((K, M, 0), "window")],
)
def test_invalid_settings_raise_an_error(arguments, setting):
    with pytest.raises(ValueError, match=setting):
        TransitionTracker(*arguments)
