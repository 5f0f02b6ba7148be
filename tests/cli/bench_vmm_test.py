"""granule bench vmm on the host: every call at every handle size, idle and beside work."""

import json

CALLS = ("create", "map", "unmap", "release")


def test_every_call_is_measured(cli):
    report = json.loads(cli("bench", "vmm", "--device", "cpu", "--json").stdout)
    assert report["device"] == "cpu" and report["granule_bytes"] == 65536
    rows = {(row["call"], row["bytes"], row["beside"]): row for row in report["rows"]}
    assert len(rows) == len(report["rows"])
    for beside in ("nothing", "work"):
        for shift in range(6):
            for call in CALLS:
                row = rows.pop((call, 65536 << shift, beside))
                assert row["count"] >= 16
                assert 0 < row["median_us"] <= row["p99_us"] <= row["max_us"]
        burst = rows.pop(("commit 96 pooled", 96 * 65536, beside))
        assert burst["count"] > 1
        assert burst["median_us"] > 0
    zero = rows.pop(("zero", 64 << 20, "nothing"))
    assert zero["median_us"] > 0 and rows == {}


def test_tables(cli):
    text = cli("bench", "vmm", "--device", "cpu").stdout.decode()
    assert text.splitlines()[0].split() == [
        "call", "bytes", "beside", "count", "median", "us", "p99", "us", "max", "us",
    ]
    markdown = cli("bench", "vmm", "--device", "cpu", "--markdown").stdout.decode().splitlines()
    assert len(markdown) == len(text.splitlines()) + 1
    assert markdown[1] == "|---|---|---|---:|---:|---:|---:|"


def test_what_cannot_be_measured_is_refused(cli):
    cli.fails(2, "bench", "vmm", "--device", "tpu", words=["--device", "tpu"])
