"""Calling the binary, and the small models that the tests of the command line run."""

import json
import os
import subprocess

import tinymodel

CAT = "the cat sat"
CAT_TEXT = "ikkkikojrdkkwpmmmonvjxlp"  # what a recall model makes of it, by ONNX Runtime


class Cli:
    """Runs the binary with a clean GRANULE_ environment and a cache folder of its own."""

    def __init__(self, binary, home):
        self.binary, self.home = binary, home

    def environment(self, extra=None):
        env = {k: v for k, v in os.environ.items() if not k.startswith("GRANULE_") and k != "OMP_NUM_THREADS"}
        env.update(XDG_CACHE_HOME=str(self.home), **(extra or {}))
        return env

    def __call__(self, *args, env=None, stdin=b"", timeout=120, **more):
        words = [self.binary, *[a if isinstance(a, bytes) else str(a) for a in args]]
        return subprocess.run(
            words, check=False, env=self.environment(env), input=stdin, capture_output=True, timeout=timeout, **more
        )

    def fails(self, code, *args, words=(), **more):
        done = self(*args, **more)
        err = done.stderr.decode()
        assert done.returncode == code, (args, done.returncode, err)
        assert done.stdout == b"", done.stdout
        assert "error:" in err
        for word in words:
            assert word in err, (word, err)
        return err

    def run_json(self, model, *args, **more):
        done = self("run", model, *args, "--json", **more)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout.decode("utf-8"))


def folder_of(tmp_path_factory, name, **options):
    folder = tmp_path_factory.mktemp(name)
    tinymodel.make(str(folder), gqa=options.pop("gqa", {}), genai=options.pop("genai", {}), **options)
    return folder
