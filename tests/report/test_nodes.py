"""What the report shows of a run without a server."""

from __future__ import annotations

import re

import tacit
from tacit import algorithms, data, graphs


def test_the_graph_the_distance_and_every_node_are_drawn(tmp_path):
    fed = data.gaussian_blobs(rows=200, classes=3, features=4, seed=3).split(6)
    run = tacit.gossip(
        fed, graph=graphs.ring(6), model="logistic", algorithm=algorithms.FedAvg(lr=0.2), rounds=3
    )
    page = run.report(tmp_path / "report.html").read_text()
    section = page.split('id="nodes"')[1].split("</section>")[0]
    assert "Decentralized training" in section
    assert "Communication graph: ring, 6 nodes" in section
    assert "Distance from consensus" in section
    drawn = next(svg for svg in section.split("<svg ") if "Communication graph" in svg)
    assert len(re.findall(r"<line ", drawn.split("</svg>")[0])) == 6  # a line a link
    for name in fed.parties:
        assert name in section


def test_a_run_with_a_server_has_no_such_section(tmp_path):
    fed = data.gaussian_blobs(rows=100, classes=3, features=4, seed=3).split(3)
    assert (
        'id="nodes"'
        not in tacit.train(fed, model="logistic", rounds=1).report(tmp_path / "report.html").read_text()
    )
