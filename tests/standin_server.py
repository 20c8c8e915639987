"""A stand-in for an inference server, as a wheel: it loads, captures, serves over HTTP and proves itself, or dies.

What it dies of depends on its options, its variables and the Transformers beside it, and it says so in the words of the
real ones. Its failures hide each other in the order of a real start: load, capture, prefill, decode.
"""

from __future__ import annotations

from tests.wheels import Files, member

PROGRAM = b"""
import argparse, json, os, sys, threading, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import transformers
from sglang.srt.server_args import ServerArgs


def die(*lines):
    print(*lines, sep="\\n", file=sys.stderr)
    sys.exit(1)


def start(options):
    print("Load weight begin. avail mem=94.08 GB", file=sys.stderr)
    if int(transformers.__version__.split(".")[0]) < 5:
        die("KeyError: 'glm_moe_dsa'", "ValueError: The checkpoint you are trying to load has model type `glm_moe_dsa` "
            "but Transformers does not recognize this architecture.")
    print("Load weight end. elapsed=1.00 s, type=GlmMoeDsaForCausalLM", file=sys.stderr)
    print("Capture cuda graph begin. This can take up to several minutes. avail mem=9.51 GB", file=sys.stderr)
    if options.cuda_graph_max_bs > 64:
        die("Capture cuda graph bs [1, 2, 4, 8, 512]", "torch.OutOfMemoryError: CUDA out of memory.")
    if options.odd != "right":
        die("AssertionError: the flux of the odd capacitor is reversed")


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"output_ids": [token + 1 for token in asked["input_ids"]]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    options = parser.parse_args()
    start(options)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    print("The server is fired up and ready to roll!", file=sys.stderr)
    try:
        prove(options, server.server_port)
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def prove(options, port):
    if options.attention_backend == "triton":
        die('File "/x/sglang/srt/layers/attention/triton_ops/extend_attention.py", line 597, in extend_attention_fwd',
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 106496, "
            "Hardware limit: 101376. Reducing block sizes or `num_stages` may help.")
    if os.environ.get("SGLANG_ENABLE_JIT_DEEPGEMM", "1") != "0":
        die("DeepGemm is enabled but the scale_fmt of checkpoint is not ue8m0. This might cause accuracy degradation.",
            "Detected errors during sampling! NaN in the logits.")
    request = urllib.request.Request(f"http://127.0.0.1:{port}/generate",
                                     data=json.dumps({"input_ids": [3, 1, 4]}).encode())
    answer = json.load(urllib.request.urlopen(request, timeout=5))
    assert answer == {"output_ids": [4, 2, 5]}, answer
"""
OPTIONS = b"""
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--attention-backend", default="triton")
        parser.add_argument("--cuda-graph-max-bs", type=int, default=8)
        parser.add_argument("--kv-cache-dtype", default="auto")
        parser.add_argument("--mem-fraction-static", type=float, default=0.9)
        parser.add_argument("--fp4-gemm-backend", default="auto")
        parser.add_argument("--odd", default="right")
"""


def server_files() -> Files:
    """Return the files of the wheel `standin`: the program, and the modules and options of SGLang that are read."""
    return [
        (member("sglang/__init__.py"), b""),
        (member("sglang/srt/__init__.py"), b""),
        (member("sglang/srt/server_args.py"), OPTIONS),
        *(
            (member(f"sglang/{name}"), b"")
            for name in ("launch_server.py", "srt/managers/__init__.py", "srt/managers/scheduler.py")
        ),
        (member("standin/__init__.py"), b""),
        (member("standin/__main__.py"), PROGRAM + b"\n\nmain()\n"),
    ]


def transformers_files(version: str) -> Files:
    """Return the files of a stand-in for Transformers that knows nothing but its version."""
    return [(member("transformers/__init__.py"), f"__version__ = {version!r}\n".encode())]
