"""Side effects of importing the package."""

import os
import subprocess
import sys

import pytest

# Two threads on one core: a spinning thread takes the core from the thread that it waits for.
ONE_CORE_PROGRAM = """
import triptych
import os, time, torch

numbers = torch.randn(200_000)


def processor_time(threads):
    torch.set_num_threads(threads)
    torch.exp(numbers)  # starts the threads
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {min(os.sched_getaffinity(0))})
    started = time.process_time()
    for _ in range(200):
        torch.exp(numbers)
    return time.process_time() - started


print(processor_time(2) / processor_time(1))
"""


def run_python(code, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux can keep threads on one core")
def test_waiting_threads_do_not_spin():
    assert float(run_python(ONE_CORE_PROGRAM)) < 5, "a ratio of about 40 means that threads spin"


@pytest.mark.parametrize(
    ("first", "chosen", "policy"),
    [
        ("triptych", {}, "PASSIVE"),
        ("triptych", {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
        pytest.param("torch", {}, "None", marks=pytest.mark.slow),
    ],
)
def test_the_omp_wait_policy_is_set_only_before_torch_is_imported_and_unless_chosen(first, chosen, policy):
    code = f"import {first}, triptych, os; print(os.environ.get('OMP_WAIT_POLICY'))"
    assert run_python(code, **chosen).strip() == policy
