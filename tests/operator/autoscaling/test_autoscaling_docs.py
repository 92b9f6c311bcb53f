"""docs/autoscaling.md names what the code has."""

import re
from pathlib import Path

import pytest

from pagetide_operator.autoscaling import explain, signals, windows
from pagetide_operator.autoscaling.explain import LIMITS
from pagetide_operator.simulate.server import ServerModel

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/autoscaling.md").read_text()


def test_every_signal_limiter_and_reason_is_explained():
    source = Path(explain.__file__).read_text()
    reasons = set(re.findall(r'return \w+, "(\w+)"', source)) | set(LIMITS)
    asked = set(re.findall(r'Ask\("(\w+)"', Path(signals.__file__).read_text()))
    assert len(reasons) > 10
    assert asked == {"batch", "queue", "memory", "prompt"}
    for word in reasons:
        assert word in TEXT, word
    for word in asked:
        assert f"| `{word}` |" in TEXT


@pytest.mark.parametrize(
    ("number", "words"),
    [
        pytest.param(windows.SCRAPE_S, "Every {:g} s the operator scrapes", id="scrapes"),
        pytest.param(windows.WINDOW_S, "last {:g} s of each pod", id="window"),
        pytest.param(100 * signals.TOLERANCE, "Less than {:g}% too much", id="tolerance"),
        pytest.param(100 * (signals.SHRINK_MARGIN - 1), "must hold {:.0f}% more", id="margin"),
        pytest.param(ServerModel.startup_s, "`--startup-seconds` ({:g})", id="start-up"),
        pytest.param(ServerModel.prefill_rate, "`--prefill-rate` ({:,.0f})", id="prefill rate"),
    ],
)
def test_numbers_are_the_codes(number, words):
    assert words.format(number) in " ".join(TEXT.split())
