"""smolagents: the agent that calls tools; its answer is one more call."""

from smolagents import OpenAIServerModel, ToolCallingAgent, tool
from task import MODEL, STREAM, TOOL_ANSWER, URL, check_tool, double, run

QUESTION = f'Double 21 with the tool. ⟪call double {{"number": 21}}⟫ ⟪call final_answer {{"answer": "{TOOL_ANSWER}"}}⟫'


def chat_completions_tool_call() -> None:
    model = OpenAIServerModel(model_id=MODEL, api_base=f"{URL}/v1", api_key="any")
    agent = ToolCallingAgent(tools=[tool(double)], model=model, stream_outputs=STREAM, max_steps=3)
    if STREAM:
        steps = list(agent.run(QUESTION, stream=True))
        check_tool(str(steps[-1].output), pieces=len(steps))
    else:
        check_tool(str(agent.run(QUESTION)))


run(chat_completions_tool_call)
