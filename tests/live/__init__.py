"""Tests against real llama.cpp servers, installed from the package index and started by the tests."""
