import copy

import torch

from cayley.norms import PopulationStatistics


def test_plain_mean_at_first_then_a_moving_one() -> None:
    population = PopulationStatistics(2, momentum=0.25)
    means, variances = torch.randn(9, 3, 2), torch.rand(9, 3, 2)
    expected_mean, expected_var = torch.zeros(3, 2), torch.ones(3, 2)
    for k in range(9):
        population.update(means[k], variances[k])
        rate = max(0.25, 1 / (k + 1))
        expected_mean = (1 - rate) * expected_mean + rate * means[k]
        expected_var = (1 - rate) * expected_var + rate * variances[k]
        if k == 3:
            torch.testing.assert_close(population.mean, means[:4].mean(0))
    torch.testing.assert_close(population.mean, expected_mean)
    torch.testing.assert_close(population.var, expected_var)
    assert population.batches.tolist() == [9, 9, 9]


def test_grows_to_the_longest_sequence_whose_last_step_stands_for_all_beyond() -> None:
    population = PopulationStatistics(1)
    population.update(torch.ones(2, 1), torch.ones(2, 1))
    population.update(3 * torch.ones(4, 1), torch.ones(4, 1))
    population.update(5 * torch.ones(1, 1), torch.ones(1, 1), start=3)
    assert population.batches.tolist() == [2, 2, 1, 2]
    mean, var = population(torch.tensor([[0, 2], [3, 99]]))
    assert mean.shape == var.shape == (2, 2, 1)
    torch.testing.assert_close(mean.flatten(), torch.tensor([2.0, 3.0, 4.0, 4.0]))
    assert repr(population) == "PopulationStatistics(1, steps=4)"


def test_state_dict_brings_its_size() -> None:
    population = PopulationStatistics(3)
    population.update(torch.randn(7, 3), torch.rand(7, 3))
    twin = PopulationStatistics(3)
    twin.load_state_dict(population.state_dict())
    shorter = copy.deepcopy(population)
    shorter.load_state_dict(PopulationStatistics(3).state_dict())
    assert len(shorter.mean) == 1
    for key, value in population.state_dict().items():
        assert torch.equal(twin.state_dict()[key], value)
    for module in (population, twin):
        module.update(torch.ones(9, 3), torch.ones(9, 3))
    assert torch.equal(population.mean, twin.mean)
    population.reset()
    assert torch.equal(population(torch.tensor([4]))[1], torch.ones(1, 3))


def test_training_goes_on_after_inference_mode() -> None:
    population, longer = PopulationStatistics(2), PopulationStatistics(2)
    longer.update(torch.randn(5, 2), torch.rand(5, 2))
    with torch.inference_mode():
        population.update(torch.randn(3, 2), torch.rand(3, 2))
    population.update(torch.randn(3, 2), torch.rand(3, 2))
    assert population.batches.tolist() == [2, 2, 2]
    with torch.inference_mode():
        population.load_state_dict(longer.state_dict())
    population.update(torch.randn(5, 2), torch.rand(5, 2))
    with torch.inference_mode():
        population.reset()
    population.update(torch.randn(1, 2), torch.rand(1, 2))
    assert population.batches.tolist() == [1]
