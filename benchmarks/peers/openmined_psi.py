"""OpenMined's PSI (Diffie-Hellman on P-256; its compressed set, with false positives in one of 2^40 runs, as in
tacit), both roles in one process with encoded and decoded messages. Prints one line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys

import private_set_intersection.python as psi


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


n = int(sys.argv[1])
client_ids, server_ids = [f"id{i}" for i in range(n)], [f"id{i}" for i in range(n // 2, n // 2 + n)]
begun = cpu()
client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
setup = server.CreateSetupMessage(2.0**-40, n, server_ids, psi.DataStructure.GCS).SerializeToString()
asked = client.CreateRequest(client_ids).SerializeToString()
request = psi.Request()
request.ParseFromString(asked)
answered = server.ProcessRequest(request).SerializeToString()
response, known = psi.Response(), psi.ServerSetup()
response.ParseFromString(answered)
known.ParseFromString(setup)
shared = client.GetIntersection(known, response)
print(
    json.dumps(
        {"cpu": cpu() - begun, "bytes": len(setup) + len(asked) + len(answered), "shared": len(shared)}
    )
)
