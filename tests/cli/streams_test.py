"""Pipes, terminals and Ctrl-C."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import xxhash

from command_line import CAT, CAT_TEXT


def test_a_reader_that_goes_away_is_no_error(cli, endless):
    process = subprocess.Popen(
        [cli.binary, "run", str(endless), "-p", CAT, "--ignore-eos"],
        env=cli.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.read(5) == CAT_TEXT[:5].encode()
    process.stdout.close()
    assert process.wait(timeout=30) == 0
    assert process.stderr.read() == b""


def test_a_full_disk_behind_stdout_is_an_error(cli, recall):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [cli.binary, "run", str(recall), "-p", CAT, "-n", "4"],
            check=False,
            env=cli.environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert done.returncode == 4 and b"standard output" in done.stderr


def test_closed_standard_streams_do_no_harm(cli, recall, tmp_path):
    dump = tmp_path / "rows.f32"
    done = subprocess.run(
        [
            "sh",
            "-c",
            'exec "$0" run "$1" -p cat -n 3 --dump-logits "$2" >&- 2>&- <&-',
            cli.binary,
            str(recall),
            str(dump),
        ],
        check=False,
        env=cli.environment(),
        timeout=60,
    )
    assert done.returncode == 0
    assert dump.stat().st_size == 3 * 320 * 4  # no text ended up in it


def test_interrupt_stops_cleanly_with_what_there_is(cli, endless, tmp_path):
    dump = tmp_path / "rows.f32"
    process = subprocess.Popen(
        [cli.binary, "run", str(endless), "-p", CAT, "--ignore-eos", "--json", "--dump-logits", str(dump)],
        env=cli.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.time() + 60
    while not any(p.stat().st_size > 0 for p in tmp_path.iterdir()):
        assert time.time() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    report = json.loads(out)
    assert report["finish_reason"] == "cancelled" and len(report["ids"]) >= 1
    assert xxhash.xxh64(dump.read_bytes()).hexdigest() == report["logits_hash"]


def on_terminal(cli, args, *, until=None, act=None, timeout=120):
    """Runs with stdout and stderr on a 24x80 terminal; returns (exit code, everything it showed)."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(cli.binary, [cli.binary, *map(str, args)], cli.environment({"TERM": "xterm"}))
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown, deadline = b"", time.time() + timeout
    while True:
        ready, _, _ = select.select([fd], [], [], max(0, deadline - time.time()))
        assert ready, f"nothing more within {timeout} s: {shown[-300:]!r}"
        try:
            piece = os.read(fd, 65536)
        except OSError:  # the terminal's end after the process is gone
            break
        if not piece:
            break
        shown += piece
        if until is not None and until in shown:
            act(pid, fd)
            until = None
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    return os.waitstatus_to_exitcode(status), shown


def test_terminal_gets_a_line_feed_and_the_closing_line(cli, recall):
    code, shown = on_terminal(cli, ["run", recall, "-p", CAT, "-n", 24])
    assert code == 0
    lines = shown.decode().split("\r\n")
    assert lines[0] == CAT_TEXT and "tokens/s" in lines[1]


def test_ctrl_c_on_a_terminal(cli, endless):
    # The terminal itself turns the character into the signal.
    code, shown = on_terminal(
        cli,
        ["run", endless, "-p", CAT, "--ignore-eos"],
        until=CAT_TEXT.encode(),
        act=lambda _, fd: os.write(fd, b"\x03"),
    )
    assert code == 130
    assert shown.startswith(CAT_TEXT.encode()) and b"cancelled" in shown


def test_progress_of_a_long_prompt_on_a_terminal_only(cli, endless, tmp_path):
    prompt = tmp_path / "long.txt"
    prompt.write_bytes(b"go dog go " * 52000)
    args = ["run", endless, "-f", prompt, "-n", 4, "-ub", 1]
    code, shown = on_terminal(cli, args)
    assert code == 0
    assert b"reading the prompt" in shown and b" %" in shown
    for frame in shown.split(b"\r\x1b[K")[1:-1]:
        assert len(frame) < 80
    piped = cli(*args)
    assert piped.returncode == 0 and b"reading" not in piped.stderr and b"\x1b" not in piped.stderr
    assert shown.split(b"\r\x1b[K")[-1].startswith(piped.stdout)  # the line is wiped before the text
