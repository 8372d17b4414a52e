"""What importing the package does to a process."""

import os
import subprocess
import sys

import pytest

# Two threads on one core: where one spins while it waits, it takes the core from the thread that it waits for.
ON_ONE_CORE = """
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


def python(code, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux can keep threads on one core")
def test_threads_that_wait_for_each_other_leave_the_processor_to_others():
    assert float(python(ON_ONE_CORE)) < 5, "40 where they spin"


@pytest.mark.parametrize(
    ("first", "chosen", "policy"),
    [("triptych", {}, "PASSIVE"), ("triptych", {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"), ("torch", {}, "None")],
)
def test_the_wait_policy_is_set_only_where_it_takes_effect_and_nobody_has_chosen(first, chosen, policy):
    code = f"import {first}, triptych, os; print(os.environ.get('OMP_WAIT_POLICY'))"
    assert python(code, **chosen).strip() == policy
