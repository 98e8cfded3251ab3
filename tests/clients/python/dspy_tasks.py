"""DSPy: its agent, which writes fields as text and calls tools itself."""

import dspy
from task import MODEL, TOOL_ANSWER, URL, check_tool, double, run

# Each of its steps is a conversation of its own, so one text has the fields of both: of the call, and of the answer.
FIELDS = {
    "next_thought": "I double it.",
    "next_tool_name": "double",
    "next_tool_args": '{"number": 21}',
    "reasoning": "The tool said it.",
    "answer": TOOL_ANSWER,
}


def chat_completions_tool_call() -> None:
    model = dspy.LM(f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="any", cache=False, num_retries=0)
    dspy.configure(lm=model)
    text = "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in FIELDS.items())
    agent = dspy.ReAct("question -> answer", tools=[double], max_iters=1)
    check_tool(agent(question=f"Double 21. ⟪say {text}\n\n[[ ## completed ## ]]⟫").answer)


run(chat_completions_tool_call)
