"""What a replica's log says last."""

from __future__ import annotations

import pytest

from pagetide_operator.local.replica_log import last_line

PROBE = b"2026-11-30 18:07:31,061 INFO pagetide.access 127.0.0.1 GET /readyz 503 seconds=0.000436\n"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        pytest.param(b"one\ntwo\n", "two", id="the last line"),
        pytest.param(b"one\n\n  \n", "one", id="blank lines do not count"),
        pytest.param(b"loading\n" + PROBE, "loading", id="no probes"),
        pytest.param(b"x" * 100_000 + b"\nend", "end", id="only the end is read"),
        pytest.param(PROBE * 1001, "", id="nor half a line of one"),
        pytest.param(
            b"2026-11-30 18:07:31,061 INFO pagetide_server.progress loading: weights 3%\n",
            "loading: weights 3%",
            id="what is said, not when and where",
        ),
        pytest.param(
            b"2026-11-30 18:07:31,061 ERROR engine a step failed\n2026-11-30 18:07:32,061 INFO pagetide draining\n",
            "a step failed",
            id="an error, though something was logged behind it",
        ),
        pytest.param(
            b"2026-11-30 18:07:31,061 CRITICAL engine out of luck\n2026-11-30 18:07:32,061 INFO pagetide draining\n",
            "out of luck",
            id="an error of the worst kind",
        ),
        pytest.param(
            b"2026-11-30 18:07:31,061 INFO x it said ERROR nothing\n2026-11-30 18:07:32,061 INFO pagetide draining\n",
            "draining",
            id="one that is only quoted is none",
        ),
        pytest.param(
            b"2026-11-30 18:07:31,061 INFO x see pagetide.access below\n",
            "see pagetide.access below",
            id="nor is what quotes the name of the probes' log a probe",
        ),
        pytest.param(
            b"pagetide serve: --port: 1: is taken\n2026-11-30 18:07:32,061 INFO pagetide stopped\n",
            "pagetide serve: --port: 1: is taken",
            id="the line with which a command ended",
        ),
        pytest.param(
            b'{"level":"info","logger":"pagetide","message":"loading"}\n'
            b'{"level":"info","logger":"pagetide.access","message":"GET /readyz 503"}\n',
            "loading",
            id="of JSON the message, and no probes",
        ),
        pytest.param(
            b'{"level":"error","logger":"pagetide","message":"pagetide serve: out of luck"}\n'
            b'{"level":"info","logger":"pagetide","message":"stopped"}\n',
            "pagetide serve: out of luck",
            id="of JSON an error, though something was logged behind it",
        ),
        pytest.param(
            b'{"level":"critical","logger":"engine","message":"out of luck:\\n  no room\\n"}\n'
            b'{"level":"info","logger":"pagetide","message":"it said \\"level\\":\\"error\\""}\n',
            "out of luck: no room",
            id="of several lines one is made",
        ),
        pytest.param(b"{1: 2}\n", "{1: 2}", id="a brace that begins no JSON"),
        pytest.param(b'{"a": 1}\n', '{"a": 1}', id="JSON that is no log line"),
        pytest.param(b"\xff\xfe\n", "\ufffd\ufffd", id="bytes that are no text"),
        pytest.param(b"", "", id="an empty log"),
        pytest.param(None, "", id="no log"),
    ],
)
def test_last_line(content, line, tmp_path):
    log = tmp_path / "log"
    if content is not None:
        log.write_bytes(content)
    assert last_line(log) == line
