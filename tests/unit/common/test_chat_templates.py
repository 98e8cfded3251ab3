"""Outlines of Go templates."""

import pytest

from common.chat_templates import BLOCKS_DEEP_MAX, go_template_fault


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "{{ .Prompt }}",
        "{{- if .System }}<s>{{ .System }}</s>{{ end -}}",
        '{{- range .Messages }}{{ if eq .Role "user" }}{{ .C }}{{ else if .System }}x{{ else }}y{{ end }}{{ end -}}',
        '{{ "}}" }}{{ `{{ raw` }}{{/* a {{ comment with {{ if */}}',
        '{{ define "x" }}{{ end }}{{ with .A }}{{ end }}',
        "{{ $end := 1 }}{{ .end }}",
        'quotes outside of actions hide nothing: "{{ if .A }}" and {{ end }}',
        'it\'s "quoted" outside {{ .Prompt }} and "{{ .System }}"',
        "{{ if .A }}" * BLOCKS_DEEP_MAX + "{{ end }}" * BLOCKS_DEEP_MAX,
    ],
)
def test_a_template_that_closes_what_it_opens_has_no_fault(text: str) -> None:
    assert go_template_fault(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "{{ .Prompt",
        "{{ if .A }}",
        "{{ end }}",
        "{{ else }}",
        "{{ if .A }}{{ end }}{{ end }}",
        "{{ }}",
        "{{ range .A }}{{ if .B }}{{ end }}",
        "{{ .A }} {{",
        "{{ if .A }}" * (BLOCKS_DEEP_MAX + 1) + "{{ end }}" * (BLOCKS_DEEP_MAX + 1),
    ],
)
def test_a_template_that_does_not_has_one(text: str) -> None:
    assert go_template_fault(text) is not None


def test_an_action_of_many_strings_is_read_once() -> None:
    """Each of them could be a string or two quotes: together more ways than can be tried."""
    assert go_template_fault("{{ " + '""' * 1000) == "an action is not closed"
