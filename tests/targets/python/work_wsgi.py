"""An application for gunicorn."""
import hashlib
import json
import re
from string import Template

# Enough for some milliseconds of work, in which the worker does not sleep.
PAGES = 50
PAGE = Template("<html><h1>$title</h1>$rows</html>")
ROW = Template("<p id=$number>$text</p>")


def render(number):
    rows = [ROW.substitute(number=i, text="row %d of %d" % (i, number)) for i in range(30)]
    return PAGE.substitute(title="Page %d" % number, rows="".join(rows))


def check(page):
    found = re.findall(r"<p id=(\d+)>([^<]*)</p>", page)
    return hashlib.sha256(page.encode()).hexdigest(), len(found)


def describe(environment):
    kept = {key: value for key, value in environment.items() if isinstance(value, str)}
    return json.dumps(kept, sort_keys=True)


def application(environment, start_response):
    for number in range(PAGES):
        page = render(number)
        digest, count = check(page)
    body = (describe(environment) + digest + str(count) + page).encode()
    start_response("200 OK", [("Content-Type", "text/html"), ("Content-Length", str(len(body)))])
    return [body]
