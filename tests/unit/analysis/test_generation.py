"""Why a token is slow: host and device per token, from loops whose answer is known."""

import pytest

from bottleneck_lab.report.capture_words import advise_tokens, describe_tokens

from .traces import summarise_run


def generated(
    make,
    tmp_path,
    *,
    kernels,
    kernel_us,
    host_us,
    tokens=40,
    growth=0.0,
    mark="",
    embeds=False,
    trains="",
):
    """A loop that launches `kernels` a token, picks one and reads it; growing by `growth` each."""
    run = make.Program(jitter=0.0)
    for number in range(tokens):
        begin = run.host
        if embeds:
            run.operator("aten::embedding", "gather_kernel", 2.0, host_us)
        for _ in range(kernels):
            run.operator("aten::mm", "gemv_kernel", kernel_us * (1 + growth * number), host_us)
        run.operator("aten::argmax", "reduce_kernel", 2.0, host_us)
        run.wait()
        if trains:
            run.operator(trains, "gemv_kernel", kernel_us, host_us)
        if mark:
            run.range(f"{mark} {number}", begin)
    return summarise_run(tmp_path, run).generation


@pytest.mark.parametrize("mark", ["", "token", "decode"])
def test_a_slow_host_sets_the_pace(make, tmp_path, mark):
    use = generated(make, tmp_path, kernels=50, kernel_us=5.0, host_us=30.0, mark=mark)
    assert use.tokens in (38, 39, 40)
    assert use.token_ns == pytest.approx(51 * 35_000, rel=0.05)
    assert use.device_ns == pytest.approx(252_000, rel=0.05)
    assert use.host_ns > 0.95 * use.token_ns
    assert use.launches == 51
    assert use.growth == pytest.approx(1.0, abs=0.1)
    assert "The host sets the pace" in advise_tokens(use, emulated=False)
    assert "CUDA Graphs" in advise_tokens(use, emulated=False)
    assert "Launch less for each: several sequences" in advise_tokens(use, emulated=True)


def test_a_busy_device_sets_the_pace(make, tmp_path):
    use = generated(make, tmp_path, kernels=50, kernel_us=60.0, host_us=12.0)
    assert use.device_ns > 0.95 * use.token_ns
    assert use.wait_ns > 0.5 * use.token_ns
    assert "The device sets the pace" in advise_tokens(use, emulated=False)


def test_tokens_that_take_longer_each_are_told_of_a_cache(make, tmp_path):
    use = generated(make, tmp_path, kernels=20, kernel_us=60.0, host_us=12.0, growth=0.1)
    assert use.growth > 2
    assert "takes" in describe_tokens(use)[1]
    assert "cache" in advise_tokens(use, emulated=False)


def test_a_model_without_tokens_makes_predictions(make, tmp_path):
    loop = {"kernels": 9, "kernel_us": 60.0, "host_us": 12.0}
    assert generated(make, tmp_path, **loop).unit == "prediction"
    assert generated(make, tmp_path, **loop, embeds=True).unit == "token"


def test_training_generates_no_tokens(summary_of):
    assert summary_of("healthy").generation is None


@pytest.mark.parametrize("trains", ["aten::nll_loss_backward", "Optimizer.step#SGD.step"])
def test_a_training_that_picks_something_generates_nothing(make, tmp_path, trains):
    loop = {"kernels": 9, "kernel_us": 60.0, "host_us": 12.0}
    assert generated(make, tmp_path, **loop, trains=trains) is None


def test_an_operator_inside_the_sampling_one_is_no_second_token(make, tmp_path):
    """`aten::multinomial` calls `aten::argmax` on the CPU."""
    run = make.Program(jitter=0.0)
    for _ in range(20):
        for name, us in (("aten::mm", 400.0), ("aten::multinomial", 100.0)):
            begin = run.host
            run.python(us)
            run.add("cpu_op", name, begin, run.host - begin)
        run.add("cpu_op", "aten::argmax", begin + 60.0, 20.0)
    use = summarise_run(tmp_path, run).generation
    assert (use.tokens, use.token_ns) == (19, 500_000)
