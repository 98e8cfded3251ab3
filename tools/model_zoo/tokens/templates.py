"""Chat templates of the zoo, in the wire formats of well-known families.

All white space that counts is inside expressions and every tag trims its surroundings, so the result does not depend
on how the renderer treats blocks and lines.
"""

CHATML = """\
{%- if tools -%}
{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' -%}{{ messages[0].content + '\\n\\n' }}{%- endif -%}
{{ 'You may call these functions, each described by a JSON schema:\\n<tools>\\n' }}
{%- for tool in tools -%}{{ tool | tojson }}{{ '\\n' }}{%- endfor -%}
{{ '</tools>\\nAnswer a call as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{ '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif not (tools and loop.first and message.role == 'system') -%}
{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{{ '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

# As CHATML, and an empty thought when the caller switches thinking off.
CHATML_THINKING = CHATML + (
    "{%- if add_generation_prompt and enable_thinking is defined and not enable_thinking -%}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}"
)

GEMMA = """\
{{ bos_token }}
{%- for message in messages -%}
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}
{{- (message.content | trim) + '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""

INSTRUCT = """\
{{ bos_token }}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}{{ ' ' + (message.content | trim) + eos_token }}
{%- else -%}{{ '[INST] ' + (message.content | trim) + ' [/INST]' }}
{%- endif -%}
{%- endfor -%}"""
