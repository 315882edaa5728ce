"""A policy service in Python: `git push` is refused, `date` escalated, all else runs.

Needs nothing of execgate but its proto files:
    cd examples/policies/python
    python3 -m venv venv && . venv/bin/activate
    pip install -r requirements.txt
    python -m grpc_tools.protoc -I ../../../proto --python_out=. --grpc_python_out=. \
        ../../../proto/execgate/policy/v1/*.proto
    python policy.py 127.0.0.1:4721
"""

import asyncio
import os
import sys

import grpc

from execgate.policy.v1 import policy_service_pb2 as service
from execgate.policy.v1 import policy_service_pb2_grpc as rpc
from execgate.policy.v1 import verdict_pb2 as verdicts

LARGEST_MESSAGE = 16 * 1024 * 1024


def decide(asked):
    """The verdict for one ExecRequested. Programs are bytes: they are what the kernel has."""
    verdict = verdicts.Verdict(exec_id=asked.exec_id, policy_revision="python-example")
    program = os.path.basename(asked.file)
    if program == b"git" and b"push" in asked.arguments:
        verdict.deny.reason = "pushing is for people"
        verdict.reason_code = "git.push"
    elif asked.file in (b"/usr/bin/date", b"/bin/date"):
        verdict.escalate.unsandboxed.SetInParent()
    else:
        verdict.run.SetInParent()
    return verdict


class Policy(rpc.PolicyServiceServicer):
    async def Session(self, requests, context):
        async for request in requests:
            if request.WhichOneof("event") == "exec_requested":
                yield service.SessionResponse(verdict=decide(request.exec_requested))


async def main(address):
    options = [("grpc.max_receive_message_length", LARGEST_MESSAGE)]
    server = grpc.aio.server(options=options)
    rpc.add_PolicyServiceServicer_to_server(Policy(), server)
    port = server.add_insecure_port(address)
    await server.start()
    print(f"listening on {address.rpartition(':')[0]}:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
