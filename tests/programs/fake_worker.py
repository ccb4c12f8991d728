"""A program in the place of `python -m mtf_hetero worker`: it answers as a worker does, and starts at once.

python fake_worker.py -m mtf_hetero worker --until_eof --port=2222 --host=a [--fail=LINE] [--deaf] [--show=NAME,...]
  [--reach=PORT,...]
"""

import concurrent.futures
import os
import sys
import threading
import time

import grpc


def reach(port):
    """Say when another worker answers at a port of 127.0.0.1."""
    while True:
        try:  # through a tunnel, a connection breaks where nobody listens yet
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                channel.unary_unary("/tensorflow.WorkerService/GetStatus")(b"", wait_for_ready=True, timeout=5)
            os.write(1, f"reaches {port}\n".encode())  # a line at once: other threads print too
            return
        except grpc.RpcError:
            time.sleep(0.1)


def main():
    flags = dict(flag.lstrip("-").split("=", 1) for flag in sys.argv if flag.startswith("--") and "=" in flag)
    if "fail" in flags:
        print(f"a first line\nerror: {flags['fail']}", flush=True)
        sys.exit(int(os.environ.get("FAKE_CODE", "2")))
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    if "--deaf" not in sys.argv:
        handler = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
        service = grpc.method_handlers_generic_handler("tensorflow.WorkerService", {"GetStatus": handler})
        server.add_generic_rpc_handlers((service,))
        server.add_insecure_port(f"127.0.0.1:{flags['port']}")
    server.start()
    print(f"worker listens on {flags['host']}:{flags['port']}, pid {os.getpid()}", flush=True)
    for name in filter(None, flags.get("show", "").split(",")):
        print(f"{name} is {os.environ[name]!r}; its arguments are {sys.argv}", flush=True)
    for port in filter(None, flags.get("reach", "").split(",")):
        threading.Thread(target=reach, args=(port,), daemon=True).start()
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
