"""The client of the REST API against a gateway that goes away."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from gateway.client.client import GatewayClient
from gateway.client.errors import GatewayUnreachableError

SNAPSHOT = json.dumps({"functions": {"f.openfaas-fn": {"replicas": [{"state": "ready"}]}}}).encode() + b"\n"


def test_a_gateway_that_goes_away_within_its_replica_feed_is_unreachable() -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            chunk = b"%x\r\n%b\r\n" % (len(SNAPSHOT), SNAPSHOT)
            connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        gateway = threading.Thread(target=answer)
        gateway.start()
        client = GatewayClient(f"http://127.0.0.1:{listener.getsockname()[1]}")
        feed = client.follow_replicas()
        assert next(feed) == {"f": [{"state": "ready"}]}
        with pytest.raises(GatewayUnreachableError, match="went away within its answer"):
            next(feed)
        client.close()
        gateway.join()
