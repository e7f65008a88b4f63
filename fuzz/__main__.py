"""`python -m fuzz` fuzzes the targets with atheris for a minute; `python -m fuzz FILE...` runs inputs once more.

    python -m fuzz --seconds 600          # what it finds lies in build/fuzz as crash-*
    python -m fuzz --target call          # one target alone
    python -m fuzz build/fuzz/crash-abc   # again, with the traceback

atheris has wheels for some versions of CPython only. Without it this says so and ends well, unless
GLUSTX_REQUIRE_PEERS=1 is set and there is a wheel for this interpreter.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

WHEELS = ((3, 11), (3, 12), (3, 13))
FOLDER = Path(__file__).resolve().parent.parent / "build" / "fuzz"


def main() -> int:
    """Run; the exit code is 0 when nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz what bytes of a peer reach.")
    parser.add_argument("--seconds", type=int, default=60, help="how long (default: 60)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the corpus and findings go")
    parser.add_argument("--target", default="", help="the name of the only function in fuzz/targets.py to feed")
    parser.add_argument("inputs", nargs="*", type=Path, help="files to run once instead")
    arguments = parser.parse_args()
    if arguments.inputs:
        from fuzz import targets

        for path in arguments.inputs:
            print(path, flush=True)
            targets.one_input(path.read_bytes())
        return 0
    try:
        import atheris
    except ImportError:
        print("fuzz: skipped, needs atheris (pip install atheris)", file=sys.stderr)
        wanted = os.environ.get("GLUSTX_REQUIRE_PEERS") == "1" and sys.version_info[:2] in WHEELS
        return 1 if wanted else 0
    with atheris.instrument_imports(include=["glustx", "xdrlib3"]):
        from fuzz import seeds, targets
    for program in targets._PROGRAMS:
        for codec in program.codecs.values():
            codec.compile()
            for part in ("decode_call", "encode_call", "encode_reply", "decode_reply"):
                # Generated from the declarations when they are first needed, so that no import is there to watch.
                setattr(codec, part, atheris.instrument_func(getattr(codec, part)))
    only = next((target for target in targets.TARGETS if target.__name__ == arguments.target), None)
    if arguments.target and only is None:
        parser.error(f"no target {arguments.target}, only {', '.join(target.__name__ for target in targets.TARGETS)}")
    corpus = arguments.folder / "corpus"
    print(f"fuzz: {seeds.write(corpus, only)} seeds, {arguments.seconds} s, in {arguments.folder}", flush=True)
    argv = [sys.argv[0], f"-max_total_time={arguments.seconds}", "-rss_limit_mb=1024", "-timeout=10", "-max_len=4096"]
    argv += [f"-artifact_prefix={arguments.folder}/", "-print_final_stats=1", str(corpus)]
    # A mutation of the tag would be another target's input.
    atheris.Setup(argv, (lambda data: targets.one_input(targets.tagged(only, data[1:]))) if only else targets.one_input)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
