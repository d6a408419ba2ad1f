"""Where llama.cpp's package does not exist, an engine that runs here already is found, or one is told what to do."""

from __future__ import annotations

import pytest

from gateway.demo.processes import free_port
from gateway.demo.running import PORTS, Found, NothingFoundError, engines_running_here
from tests.gateway.demo.web import answering

MODELS = '{"object":"list","data":[{"id":"m","object":"model"}]}'


def test_an_engine_on_one_of_the_ports_is_found() -> None:
    with answering({"/v1/models": MODELS}) as url:
        found = engines_running_here([free_port(), int(url.rpartition(":")[2])])
    assert found == [Found(url, "OpenAI-compatible engine")]


def test_a_web_server_that_is_no_engine_is_not_taken_for_one() -> None:
    with answering({"/": "hello"}) as url, pytest.raises(NothingFoundError):
        engines_running_here([int(url.rpartition(":")[2])])


def test_with_no_engine_one_is_told_which_ports_were_tried_and_what_to_do() -> None:
    port = free_port()
    with pytest.raises(NothingFoundError, match=rf"\({port}\)\. Start one and try again"):
        engines_running_here([port])


def test_the_ports_are_those_of_ollama_and_llamacpp_among_others() -> None:
    assert {11434, 8080} <= set(PORTS)
