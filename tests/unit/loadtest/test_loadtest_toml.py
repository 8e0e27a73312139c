"""What is written as TOML is read as what it was."""

from __future__ import annotations

import tomllib

from loadtest.toml_core import toml_of


def test_a_document_comes_back_as_it_was() -> None:
    document = {
        "text": 'a "b" \\ \n\x00\x7f é \U0001f30d',
        "numbers": [1, -2.5, 1e-7, 1e30],
        "is_so": True,
        "none": [],
        "us->eu": {"min.insync.regions": "2", "": {"a b": 1}},
        "rows": [{"listen": {"kafka": "h:1"}, "brokers": [{"number": 1}, {"number": 2}]}, {}],
    }
    assert tomllib.loads(toml_of(document)) == document


def test_keys_are_quoted_where_they_must_be_and_text_is_written_as_it_is() -> None:
    assert toml_of({"a-b_1": "é", "a.b": 1}) == 'a-b_1 = "é"\n"a.b" = 1\n'
