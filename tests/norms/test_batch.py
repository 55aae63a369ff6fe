import pytest
import torch

from cayley.norms import PopulationStatistics


def test_plain_mean_at_first_then_a_moving_one() -> None:
    population = PopulationStatistics(2, momentum=0.25)
    means, variances = torch.randn(9, 3, 2), torch.rand(9, 3, 2)
    expected_mean, expected_var = torch.zeros(3, 2), torch.ones(3, 2)
    for k in range(9):
        population.update(means[k], variances[k], 4)
        rate = max(0.25, 1 / (k + 1))
        expected_mean = (1 - rate) * expected_mean + rate * means[k]
        expected_var = (1 - rate) * expected_var + rate * variances[k]
        if k == 3:
            torch.testing.assert_close(population.mean[:3], means[:4].mean(0))
    torch.testing.assert_close(population.mean[:3], expected_mean)
    torch.testing.assert_close(population.var[:3], expected_var)
    assert population.batches[:4].tolist() == [9, 9, 9, 0]


def test_sequences_weigh_alike_whatever_batch_they_are_in() -> None:
    """A plain mean over sequences at first; then each batch counts by its size."""
    population = PopulationStatistics(1, momentum=0.25)
    for mean, n in ((1.0, 2), (4.0, 6), (9.0, 2)):
        population.update(torch.full((1, 1), mean), torch.full((1, 1), mean), n)
    expected = torch.tensor([(2 * 1 + 6 * 4 + 2 * 9) / 10])
    torch.testing.assert_close(population.mean[0], expected)
    torch.testing.assert_close(population.var[0], expected)
    for n in (5, 30):
        k, average = int(population.batches[0]) + 1, (population.sequences[0] + n).item()
        share = max(0.25, 1 / k) * n / (average / k)
        expected = expected + min(share, 1.0) * (0 - expected)
        population.update(torch.zeros(1, 1), torch.zeros(1, 1), n)
        torch.testing.assert_close(population.mean[0], expected)


@pytest.mark.parametrize(("n", "max_steps"), [(4, 9), (4, 2), (1, 9)])
@pytest.mark.filterwarnings("ignore:normalisation over the batch")
def test_one_number_of_sequences_is_that_of_each_step(n: int, max_steps: int) -> None:
    populations = [PopulationStatistics(2, max_steps=max_steps, momentum=0.25) for _ in range(2)]
    for _ in range(6):
        mean, var = torch.randn(3, 2), torch.rand(3, 2)
        for population, sequences in zip(populations, (n, torch.full((3,), n)), strict=True):
            population.update(mean, var, sequences)
    one, other = (population.state_dict() for population in populations)
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_step_of_one_sequence_does_not_count() -> None:
    population = PopulationStatistics(1)
    mean, var = torch.tensor([[1.0], [2.0], [torch.nan]]), torch.tensor([[1.0], [3.0], [0.0]])
    with pytest.warns(UserWarning, match="single sequence has no variance"):
        population.update(mean, var, torch.tensor([4, 2, 1]))
    population.update(mean, var, torch.tensor([3, 1, 1]))  # it is said once
    assert population.batches[:3].tolist() == [2, 1, 0]
    assert population.sequences[:3].tolist() == [7, 2, 0]
    mean, var = population(torch.tensor([0, 1, 2, 5000]))  # the last that counted stands for all
    torch.testing.assert_close(mean.flatten(), torch.tensor([1.0, 2.0, 2.0, 2.0]))
    torch.testing.assert_close(var.flatten(), torch.tensor([1.0, 3.0, 3.0, 3.0]))


def test_nothing_that_counts_is_nothing_to_evaluate_by() -> None:
    population = PopulationStatistics(2)
    mean, var = population(torch.tensor([3]))  # before training: as torch's
    assert (mean == 0).all()
    assert (var == 1).all()
    with pytest.warns(UserWarning, match="does not count"):
        population.update(torch.randn(3, 2), torch.zeros(3, 2), 1)
    with pytest.raises(RuntimeError, match="no training step had two sequences"):
        population(torch.tensor([0]))
    population.update(torch.randn(3, 2), torch.ones(3, 2), 2)
    assert population(torch.tensor([0]))[0].isfinite().all()
    population.reset()
    assert (population(torch.tensor([0]))[1] == 1).all()


def test_steps_beyond_the_last_slot_share_it() -> None:
    population = PopulationStatistics(1, max_steps=3)
    values = torch.randn(5, 7, 1)
    population.update(values.mean(1), values.var(1, correction=0), 7)
    torch.testing.assert_close(population.mean[:2], values.mean(1)[:2])
    torch.testing.assert_close(population.mean[2], values[2:].mean((0, 1)))
    torch.testing.assert_close(population.var[2], values[2:].var((0, 1), correction=0))
    assert population.batches.tolist() == [1, 1, 1]
    population.update(torch.zeros(2, 1), torch.ones(2, 1), 4, start=100)
    population.update(torch.zeros(1, 1), torch.ones(1, 1), 4, start=2)
    assert population.batches.tolist() == [1, 1, 3]
    assert population.sequences.tolist() == [7, 7, 21 + 8 + 4]
    mean, _ = population(torch.tensor([[0, 1], [2, 99]]))
    assert torch.equal(mean, population.mean[torch.tensor([[0, 1], [2, 2]])])
    assert repr(population) == "PopulationStatistics(1, max_steps=3)"
    with pytest.raises(ValueError, match="max_steps to be at least 1, got 0"):
        PopulationStatistics(1, max_steps=0)
    for wrong in (2.0, None, True):
        with pytest.raises(TypeError, match="max_steps to be an int, got"):
            PopulationStatistics(1, max_steps=wrong)  # pyrefly: ignore[bad-argument-type]


def test_a_gap_takes_the_step_before_it_or_the_first() -> None:
    population = PopulationStatistics(1)
    for start in (2, 5):
        population.update(torch.full((1, 1), float(start)), torch.ones(1, 1), 2, start)
    mean, _ = population(torch.arange(8))
    assert mean.flatten().tolist() == [2, 2, 2, 2, 2, 5, 5, 5]


@pytest.mark.parametrize("assign", [False, True])
def test_any_number_of_slots_loads(assign: bool) -> None:
    population = PopulationStatistics(3, max_steps=5)
    population.update(torch.randn(7, 3), torch.rand(7, 3), 4)
    for slots in (1, 3, 5, 20):
        twin = PopulationStatistics(3, max_steps=slots)
        twin.load_state_dict(population.state_dict(), assign=assign)
        assert len(twin.mean) == slots
        own = min(slots, 5) - (slots < 5)
        for key, value in population.state_dict().items():
            assert torch.equal(twin.state_dict()[key][:own], value[:own])
        if slots < 5:
            n = population.sequences[own:, None].double()
            torch.testing.assert_close(twin.mean[-1], (n * population.mean[own:]).sum(0) / n.sum())
            assert twin.sequences[-1] == n.sum()
        steps = torch.arange(own)
        assert torch.equal(twin(steps)[0], population(steps)[0])
    with pytest.raises(RuntimeError, match="size mismatch"):
        PopulationStatistics(2).load_state_dict(population.state_dict())


def test_training_goes_on_after_inference_mode() -> None:
    population, other = PopulationStatistics(2), PopulationStatistics(2, max_steps=7)
    other.update(torch.randn(5, 2), torch.rand(5, 2), 2)
    with torch.inference_mode():
        population.update(torch.randn(3, 2), torch.rand(3, 2), 2)
    population.update(torch.randn(3, 2), torch.rand(3, 2), 2)
    assert population.batches[:4].tolist() == [2, 2, 2, 0]
    with torch.inference_mode():
        population.load_state_dict(other.state_dict())
    population.update(torch.randn(5, 2), torch.rand(5, 2), 2)
    with torch.inference_mode():
        population.reset()
    population.update(torch.randn(1, 2), torch.rand(1, 2), 2)
    assert population.batches[:2].tolist() == [1, 0]


def test_the_first_batch_is_kept_as_it_is() -> None:
    """However small its variance is beside the 1 that there is at first."""
    statistics = PopulationStatistics(1).float()
    statistics.update(torch.tensor([[3e-9]]).float(), torch.tensor([[1e-8]]).float(), 8)
    assert statistics.var[0].item() == pytest.approx(1e-8)


@pytest.mark.parametrize("default", [torch.float16, torch.float32])
def test_weights_do_not_depend_on_the_default_dtype(default: torch.dtype) -> None:
    statistics = PopulationStatistics(1, dtype=torch.float64)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for value in (1.0, 2.0, 6.0):
            new = torch.full((1, 1), value, dtype=torch.float64)
            statistics.update(new, new, 100_000)
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(statistics.mean[0].item(), 3.0, rtol=1e-14, atol=0)
