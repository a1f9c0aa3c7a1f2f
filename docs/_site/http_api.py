"""Write the reference of the server's HTTP API, from its OpenAPI schema."""

from typing import Any


def page() -> str:
    """Return the page of all routes, and the bodies that they take."""
    from setblock import load
    from setblock.server.app import create_app
    from setblock.server.serving import ServerConfig

    schema = create_app(load(), ServerConfig(name="setblock")).openapi()
    parts = [
        "# HTTP API",
        "The API of `setblock serve`. [Serve](../serving.md) explains it by examples. "
        "A running server has the same as a schema at `/openapi.json`.",
    ]
    bodies = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts += [f"## {method.upper()} {path}", operation.get("description") or operation.get("summary", "")]
            if body := body_of(operation):
                parts.append(f"Body: [`{body}`](#{body.lower()}).")
                bodies[body] = schema["components"]["schemas"][body]
            rows = [
                f"| {status} | {cell(answer['description'])} |" for status, answer in operation["responses"].items()
            ]
            parts.append("\n".join(["| status | meaning |", "|---|---|", *rows]))
    for name, body in bodies.items():
        parts += [f"## {name}", cell(body.get("description", "")), properties(body)]
    return "\n\n".join(parts) + "\n"


def body_of(operation: Any) -> str | None:
    """Return the name of the schema that a request's body has."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    reference: str | None = content.get("$ref")
    return reference and reference.rpartition("/")[2]


def properties(body: Any) -> str:
    """Return a table with a row for each field."""
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in body["properties"].items():
        default = "required" if name in body.get("required", ()) else f"`{field.get('default', 'null')}`"
        rows.append(f"| `{name}` | {kinds(field)} | {default} | {cell(field.get('description', ''))} |")
    return "\n".join(rows)


def kinds(field: Any) -> str:
    """Return the types that a field may have, with their bounds."""
    options = field.get("anyOf", [field])
    return " or ".join(dict.fromkeys(kind(each) for each in options if each.get("type") != "null"))


def kind(field: Any) -> str:
    """Return one type, with its bounds."""
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    bounds = [
        f"{words} {field[key]:g}"
        for key, words in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "below"),
        )
        if isinstance(field.get(key), int | float)
    ]
    name = field.get("type") or field.get("$ref", "any").rpartition("/")[2]
    return f"{name}{' ' * bool(bounds)}{', '.join(bounds)}"


def cell(text: str) -> str:
    """Return text that can be in a table."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
