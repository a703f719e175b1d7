"""Checks the official Python client of the Model Context Protocol with a server over HTTP and over standard input and output.

The environment has REFRAIN_MCP_URL, REFRAIN_PROGRAM, REFRAIN_MODEL, REFRAIN_NOTES (a folder of notes), REFRAIN_INDEX and REFRAIN_MCP_TOKEN.
"""

import asyncio
import os

from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

QUESTION = "Which company takes care of the roof repair?"


def over_http():
    import httpx2

    headers = {"Authorization": f"Bearer {os.environ['REFRAIN_MCP_TOKEN']}"}
    http = httpx2.AsyncClient(headers=headers, timeout=120)
    return streamable_http_client(os.environ["REFRAIN_MCP_URL"], http_client=http)


def over_stdio():
    arguments = ["mcp", "--config", "none", "--store", "none", "--mcp-forget", "--model", os.environ["REFRAIN_MODEL"]]
    arguments += ["--index", os.environ["REFRAIN_INDEX"], "--notes", os.environ["REFRAIN_NOTES"]]
    return StdioServerParameters(command=os.environ["REFRAIN_PROGRAM"], args=arguments)


async def check(name, server, mode):
    async with Client(server, mode=mode, read_timeout_seconds=120) as client:
        tools = await client.list_tools()
        assert [tool.name for tool in tools.tools] == ["search_notes", "answer_from_notes", "summarize", "forget"]
        # The client checks structured results against the schemas.
        found = await client.call_tool("search_notes", {"query": QUESTION, "limit": 3})
        assert not found.is_error, found
        passages = found.structured_content["passages"]
        assert passages[0]["name"].endswith("repair-roof.md"), passages[0]
        read = await client.read_resource(passages[0]["uri"])
        assert passages[0]["text"].strip() in read.contents[0].text
        n_notes, cursor = 0, None
        while True:
            page = await client.list_resources(cursor=cursor)
            n_notes += len(page.resources)
            cursor = page.next_cursor
            if cursor is None:
                break
        assert n_notes == len(os.listdir(os.environ["REFRAIN_NOTES"])), n_notes
        templates = await client.list_resource_templates()
        assert templates.resource_templates[0].uri_template == "refrain://notes/{id}"

        notices = []

        async def on_progress(progress, total, message):
            notices.append(progress)

        arguments = {"question": QUESTION, "max_tokens": 16}
        answer = await client.call_tool("answer_from_notes", arguments, progress_callback=on_progress)
        assert not answer.is_error and answer.structured_content["sources"], answer
        assert notices and notices == sorted(notices), notices
        summary = await client.call_tool("summarize", {"note": passages[0]["uri"], "max_tokens": 16})
        assert not summary.is_error and summary.structured_content["notes"], summary
        forgotten = await client.call_tool("forget", {"before": "2000-01-01"})
        assert forgotten.structured_content["n_answers"] == 0, forgotten
        gone = await client.call_tool("summarize", {"note": "refrain://notes/" + "0" * 32})
        assert gone.is_error, gone
        for wrong in [client.call_tool("search_notes", {}), client.read_resource("refrain://notes/other")]:
            try:
                await wrong
            except MCPError:
                continue
            raise AssertionError("refused arguments are errors")
        print(f"ok: {name}, {mode}, {n_notes} notes, {len(notices)} notices of progress")


async def main():
    # With a session, and as the newest version of the protocol has it.
    for mode in ["legacy", "auto"]:
        await check("HTTP", over_http(), mode)
        await check("standard input and output", over_stdio(), mode)


asyncio.run(main())
