"""AG2 (AutoGen 0.2's API): the histories of a group chat, of one with hand-offs, and of two agents."""

# requires: ag2[openai]==0.14.0

from __future__ import annotations

import json
from typing import Any

import answers
from autogen import ConversableAgent, GroupChat, GroupChatManager, LLMConfig, register_function
from autogen.agentchat import initiate_group_chat
from autogen.agentchat.group import AgentTarget, OnCondition, StringLLMCondition, TerminateTarget
from autogen.agentchat.group.patterns import DefaultPattern


def measure_beds(garden: str) -> str:
    """Measure the beds."""
    return answers.TOOL_RESULT


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def team(url: str, **settings: Any) -> tuple[ConversableAgent, ConversableAgent]:
    config = LLMConfig({"model": "gpt-5", "base_url": f"{url}/v1", "api_key": "none", "cache_seed": None})

    def agent(name: str, system: str, **more: Any) -> ConversableAgent:
        return ConversableAgent(
            name, system_message=system, llm_config=config, human_input_mode="NEVER", **settings, **more
        )

    return agent("planner", answers.PLANNER_SYSTEM), agent("critic", answers.CRITIC_SYSTEM)


def two_agents() -> None:
    """Let the critic's chat with the planner start from the planner's message."""
    with answers.server(answers.CRITIC, answers.PLANNER_AGAIN) as url:
        planner, critic = team(url, is_termination_msg=lambda message: "Saturday" in message["content"])
        result = planner.initiate_chat(critic, message=answers.PLANNER, max_turns=3, silent=True)
        answers.write("ag2_chat_result.json", plain(vars(result) | {"cost": {}}))
        messages = {agent.name: history for agent, history in planner.chat_messages.items()}
        answers.write("ag2_chat_messages.json", messages)


def group_chat() -> None:
    script = (
        [answers.call("measure_beds", garden="school")],
        answers.PLANNER,
        answers.CRITIC,
        answers.PLANNER_AGAIN,
    )
    with answers.server(*script) as url:
        planner, critic = team(url)
        user = ConversableAgent("user", llm_config=False, human_input_mode="NEVER")
        register_function(measure_beds, caller=planner, executor=planner, description="Measure the beds.")
        order = iter((planner, planner, planner, critic, planner))
        chat = GroupChat(
            agents=[user, planner, critic],
            messages=[],
            max_round=6,
            speaker_selection_method=lambda speaker, chat: next(order),
            allow_repeat_speaker=True,
        )
        manager = GroupChatManager(chat, llm_config=False)
        user.initiate_chat(manager, message=answers.USER, silent=True)
    answers.write("ag2_groupchat_messages.json", plain(chat.messages))


def handoffs() -> None:
    script = (
        [answers.PLANNER, answers.call("transfer_to_critic_1")],
        [answers.CRITIC, answers.call("transfer_to_planner_1")],
        answers.PLANNER_AGAIN,
    )
    with answers.server(*script) as url:
        planner, critic = team(url)
        for agent, other in ((planner, critic), (critic, planner)):
            condition = StringLLMCondition(prompt=f"Transfer to {other.name}.")
            agent.handoffs.add_llm_condition(OnCondition(target=AgentTarget(other), condition=condition))
            agent.handoffs.set_after_work(TerminateTarget())
        pattern = DefaultPattern(initial_agent=planner, agents=[planner, critic])
        result, _, _ = initiate_group_chat(pattern, answers.USER, max_rounds=10)
    answers.write("ag2_group_handoffs.json", plain(result.chat_history))


two_agents()
group_chat()
handoffs()
