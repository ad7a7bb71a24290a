"""Load generators and clients of others, unmodified, against the endpoint: guidellm, aiperf and the openai package.

The first two are commands in environments of their own (`pip install guidellm==0.8.1`, `pip install aiperf==0.13.0`),
named by `--guidellm` and `--aiperf`; the openai package is a dependency of the tests. Nothing is downloaded: the
prompts are synthetic, and the tokenizer is the served model's. Their reports are kept under `--results` without the
figures of single requests.

    python -m benchmarks.serving.generators --guidellm ENV/bin/guidellm --aiperf ENV/bin/aiperf     about 2 minutes

It must show: each ends with exit code 0, and no request failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai

from benchmarks.harness import report
from benchmarks.serving.endpoint import Beside, Endpoint, Wanted, arguments, endpoint
from kvcluster.testing.models import make_model

RESULTS = Path(__file__).parents[1] / "results" / "serving"
STREAMS, REQUESTS, PROMPT_TOKENS, TOKENS = 4, 32, 64, 32
TIMEOUT_S = 300.0
MOST_LIST = 20  # entries of a list that is kept; longer ones are single requests' figures
LEFT_OUT = {"config", "input_config", "run_info", "requests", "text", "image", "video", "audio", "tool_call"}
OFFLINE = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"}

Run = Callable[[Endpoint, Path, Path], dict[str, Any]]  # tokenizer's folder, scratch folder


def guidellm(command: str) -> Run:
    def run(served: Endpoint, tokenizer: Path, scratch: Path) -> dict[str, Any]:
        output = scratch / "guidellm.json"
        model = served.models[0]
        words = [command, "run", "--disable-progress"]
        words += ["--backend", f"kind=openai_http,target={served.url},model={model},request_format=/v1/completions"]
        words += [
            "--profile",
            f"kind=concurrent,streams={STREAMS}",
            "--constraint",
            f"kind=max_requests,count={REQUESTS}",
        ]
        words += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}"]
        words += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}"]
        words += ["--output", f"kind=json,path={output}"]
        _run(words, OFFLINE)
        return _read(output)

    return run


def aiperf(command: str) -> Run:
    """Its offline switch takes no folder for a tokenizer; without it none is looked for elsewhere either."""

    def run(served: Endpoint, tokenizer: Path, scratch: Path) -> dict[str, Any]:
        words = [command, "profile", "--model", served.models[0], "--url", served.url, "--tokenizer", str(tokenizer)]
        words += ["--endpoint-type", "chat", "--streaming", "--concurrency", str(STREAMS)]
        words += ["--request-count", str(REQUESTS), "--synthetic-input-tokens-mean", str(PROMPT_TOKENS)]
        words += ["--output-tokens-mean", str(TOKENS), "--extra-inputs", "ignore_eos:true", "--use-server-token-count"]
        words += ["--artifact-dir", str(scratch), "--ui", "none"]
        _run(words, {})
        return _read(scratch / "profile_export_aiperf.json")

    return run


def openai_package(served: Endpoint, tokenizer: Path, scratch: Path) -> dict[str, Any]:
    """Every kind of call, through the package as it is."""
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=5)
    model = client.models.list().data[0].id
    asked: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0}
    messages: Any = [{"role": "user", "content": "What is a page table?"}]
    whole = client.completions.create(model=model, prompt="The page", n=2, logprobs=2, **asked)
    streamed = list(client.completions.create(model=model, prompt="The page", stream=True, **asked))
    chat = client.chat.completions.create(model=model, messages=messages, logprobs=True, top_logprobs=2, **asked)
    usage: Any = {"include_usage": True}
    events = list(
        client.chat.completions.create(model=model, messages=messages, stream=True, stream_options=usage, **asked)
    )
    said = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    text = "".join(event.choices[0].text for event in streamed if event.choices)
    return {
        "version": openai.__version__,
        "completion": json.loads(whole.model_dump_json()),
        "streamed_equals_whole": text == whole.choices[0].text,
        "chat_streamed_equals_whole": said == chat.choices[0].message.content,
        "usage_of_stream": events[-1].usage and json.loads(events[-1].usage.model_dump_json()),
        "events": len(events),
        "wrong_model": _refusal(lambda: client.completions.create(model="none", prompt="a", **asked)),
        "wrong_field": _refusal(lambda: client.completions.create(model=model, prompt="a", suffix="b", **asked)),
    }


def main() -> None:
    chosen = _chosen()
    runs: dict[str, Run] = {"openai": openai_package}
    if chosen.guidellm:
        runs["guidellm"] = guidellm(chosen.guidellm)
    if chosen.aiperf:
        runs["aiperf"] = aiperf(chosen.aiperf)
    with endpoint(chosen, Wanted()) as served, tempfile.TemporaryDirectory() as scratch:
        tokenizer = make_model(Path(scratch) / "tokenizer", "llama")  # as the endpoint's own, which is made alike
        beside = Beside([served])
        took = {name: _kept(name, run, served, tokenizer, chosen.results) for name, run in runs.items()}
        told = beside.said()
    report("serving generators", {}, beside=told, runs=took)


def _chosen() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--guidellm", help="the command of an environment that has it")
    parser.add_argument("--aiperf", help="likewise")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def _kept(name: str, run: Run, served: Endpoint, tokenizer: Path, results: Path) -> dict[str, Any]:
    """Run it, and keep its report."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        said = _trimmed(run(served, tokenizer, Path(scratch)))
    results.mkdir(parents=True, exist_ok=True)
    results.joinpath(f"{name}.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return {"seconds": round(time.perf_counter() - began, 1), "report": f"{name}.json"}


def _run(words: list[str], environment: dict[str, str]) -> None:
    """Raises CalledProcessError where it ends with another exit code than 0."""
    told = {**os.environ, **environment}
    done = subprocess.run(words, env=told, timeout=TIMEOUT_S, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr)
        done.check_returncode()


def _read(path: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return said


def _refusal(call: Callable[[], object]) -> dict[str, Any]:
    """How the package tells an error."""
    try:
        call()
    except openai.APIStatusError as error:
        return {"raised": type(error).__name__, "status": error.status_code, "body": error.body}
    return {"raised": None}


def _trimmed(value: Any) -> Any:
    """Without long lists, and without what says again how it was called or what its other figures say."""
    if isinstance(value, dict):
        return {name: _trimmed(each) for name, each in value.items() if name not in LEFT_OUT or isinstance(each, str)}
    if isinstance(value, list):
        return [_trimmed(each) for each in value] if len(value) <= MOST_LIST else f"{len(value)} entries left out"
    return value


if __name__ == "__main__":
    main()
