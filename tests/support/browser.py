"""Drives a real browser by WebDriver, and nothing but what Python comes with.

A scenario is a function of `Browser`; whatever it expects and doesn't find in time ends the program with what the
page showed. Usage: browser.py SCENARIO URL TOKEN [SCREENSHOTS]
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PATIENCE = 60
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "End": "\ue010"}


def started():
    """A driver, and where it listens. It takes a port that it finds free, which may be gone by then: it is asked again."""
    said = ""
    for _ in range(10):
        driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for line in driver.stdout:
            said += line
            if "started successfully on port" in line:
                return driver, "http://127.0.0.1:" + line.rstrip().rstrip(".").rsplit(" ", 1)[1]
        driver.wait()
    raise SystemExit(f"chromedriver doesn't start:\n{said}")


class Browser:
    """A headless Chromium of its own."""

    def __init__(self, screenshots):
        self.screenshots = screenshots
        self.profile = tempfile.TemporaryDirectory()
        self.driver, self.address = started()
        arguments = [
            "--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1360,820",
            f"--user-data-dir={self.profile.name}",
        ]
        # Chromium's own sandbox refuses to work for root.
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")
        options = {"args": arguments}
        wanted = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options, "acceptInsecureCerts": True,
                                  "goog:loggingPrefs": {"browser": "ALL"}}}
        self.session = "/session/" + self.ask("POST", "/session", {"capabilities": wanted})["sessionId"]

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"content-type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def run(self, script, *arguments):
        return self.ask("POST", self.session + "/execute/sync", {"script": script, "args": list(arguments)})

    def open(self, url):
        self.ask("POST", self.session + "/url", {"url": url})

    def size(self, width, height):
        # Chromium's window has a least width; what the page is laid out for hasn't.
        self.ask("POST", self.session + "/goog/cdp/execute", {
            "cmd": "Emulation.setDeviceMetricsOverride",
            "params": {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700},
        })

    def scheme(self, scheme):
        self.ask("POST", self.session + "/goog/cdp/execute", {
            "cmd": "Emulation.setEmulatedMedia",
            "params": {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        })

    def find(self, selector):
        """The first that is there and shown, once it is."""
        found = self.until(
            f"{selector} is shown",
            "return [...document.querySelectorAll(arguments[0])].find(e => e.checkVisibility())", selector)
        return found[ELEMENT]

    def until(self, what, script, *arguments):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            value = self.run(script, *arguments)
            if value:
                return value
            time.sleep(0.1)
        page = self.run("return document.body.innerText")
        raise SystemExit(f"not so within {PATIENCE} s: {what}. The page:\n{page}\n{self.log()}")

    def sees(self, selector, text):
        self.until(
            f"{selector} says {text!r}",
            "return [...document.querySelectorAll(arguments[0])].some(e => e.checkVisibility() && "
            "e.innerText.includes(arguments[1]))",
            selector, text)

    def sees_none(self, selector):
        self.until(f"there is no {selector}",
                   "return ![...document.querySelectorAll(arguments[0])].some(e => e.checkVisibility())", selector)

    def click(self, selector):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self.ask("POST", f"{self.session}/element/{self.find(selector)}/click", {})
            except urllib.error.HTTPError as error:
                # A list that is drawn anew meanwhile has other elements.
                if error.code != 404 or time.monotonic() > deadline:
                    raise

    def write(self, selector, text):
        self.ask("POST", f"{self.session}/element/{self.find(selector)}/value", {"text": text})

    def press(self, key):
        key = KEYS.get(key, key)
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.ask("POST", self.session + "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def command(self, name, **parameters):
        return self.ask("POST", self.session + "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def heap(self):
        """Bytes that the page's scripts hold."""
        self.command("HeapProfiler.collectGarbage")
        return self.command("Runtime.getHeapUsage")["usedSize"]

    def log(self):
        return "\n".join(entry["message"] for entry in self.ask("POST", self.session + "/se/log", {"type": "browser"}))

    def screenshot(self, name):
        if self.screenshots:
            image = base64.b64decode(self.ask("GET", self.session + "/screenshot"))
            with open(os.path.join(self.screenshots, name + ".png"), "wb") as file:
                file.write(image)

    def fits(self):
        """Nothing is wider than the page, or lies over something else of its row."""
        for what in ["html", "#view"]:
            wider = self.run("const it = document.querySelector(arguments[0]); return it.scrollWidth - it.clientWidth", what)
            assert wider <= 0, f"{what} is {wider} pixels wider than its window, at {self.run('return location.hash')}"
        over = self.run("""
            const cells = [...document.querySelectorAll('.row')].slice(0, 40).map(row => [...row.children].filter(
                cell => cell.checkVisibility() && cell.innerText));
            for (const row of cells) for (const one of row) for (const other of row) {
                const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
                if (one !== other && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
                    return `${one.className} ${one.innerText}, ${other.className} ${other.innerText}`;
            }
            return null;""")
        assert not over, f"one lies over the other: {over}"

    def close(self):
        try:
            self.ask("DELETE", self.session)
        except (OSError, urllib.error.URLError):
            pass
        self.driver.terminate()
        self.driver.wait()
        self.profile.cleanup()


def log_in(browser, url, token):
    browser.open(url)
    browser.write("#token", token)
    browser.press("Enter")
    browser.sees("#connection", "live")


def say(line):
    print(line, flush=True)


def heard():
    return sys.stdin.readline().strip()


def approve(browser, url, token):
    """A wrong token, the right one; an exec that appears; one that waits and is approved; what was seen is told."""
    browser.open(url)
    browser.write("#token", "execgate_wrong")
    browser.press("Enter")
    browser.sees("#login-error", "isn't an operator's or auditor's token")
    browser.run("document.getElementById('token').value = ''")
    log_in(browser, url, token)
    say("logged-in")
    browser.sees(".row .command", "marker-that-runs")
    say("seen")
    browser.sees("#pending", "1")
    browser.press("2")
    browser.sees(".approval pre.command", "marker-that-waits")
    browser.screenshot("approval")
    browser.press("a")
    browser.sees(".approval .verdict", "approved")
    say("approved")
    browser.press("1")
    browser.sees(".row .command", "marker-that-waits")
    browser.click(".row .command")
    browser.sees(".detail", "Session")
    assert not browser.run("return document.querySelector('.detail img, .detail script')"), "markup of a sandbox's"
    browser.screenshot("live")
    browser.press("5")
    browser.sees(".rules .row", "marker-that-waits")
    browser.screenshot("rules")
    browser.press("4")
    browser.sees(".row .command", "marker-that-runs")
    browser.write("input[name=program]", "rm")
    browser.press("Enter")
    browser.until("only rm is found", "return [...document.querySelectorAll('.row .command')].every("
                  "command => command.innerText.includes('rm x'))")
    browser.sees(".row .verdict", "deny")
    browser.screenshot("history")
    browser.run("document.activeElement.blur()")
    browser.press("3")
    browser.sees(".sessions .row", "live")
    browser.screenshot("sessions")
    browser.press("j")
    browser.press("Enter")
    browser.sees(".tree .row .command", "marker-that-waits")
    browser.screenshot("session")
    session = browser.run("return location.hash.slice(1)")
    for name in ["live", "approvals", session, "history", "rules", "sessions"]:
        browser.size(390, 780)
        browser.run("location.hash = arguments[0]", name)
        browser.sees(f"[data-view={name.split('/')[0]}][aria-current]", "")
        browser.sees("#view .row, #view .approval", "")
        browser.fits()
    browser.run("location.hash = 'live'")
    browser.scheme("dark")
    browser.screenshot("phone-dark")
    browser.size(1360, 820)
    browser.screenshot("live-dark")
    noise = [line for line in browser.log().splitlines() if "401" not in line and "username" not in line]
    assert not noise, f"the browser complains: {noise}"
    say("shown")


def revoked(browser, url, token):
    """Whose token is taken away is logged out."""
    log_in(browser, url, token)
    say("logged-in")
    browser.sees("#login-form", "execgate")
    say("logged-out")


def auditor(browser, url, token):
    """An auditor sees what happens, and can't decide."""
    log_in(browser, url, token)
    browser.sees(".row .command", "marker-that-runs")
    browser.sees(".row .command", "sleep")
    browser.press("3")
    browser.sees(".sessions .row", "sleep")
    browser.screenshot("auditor-sessions")
    browser.press("j")
    browser.press("Enter")
    browser.sees(".tree .row .command", "sleep")
    assert not browser.run("return document.querySelector('.approve, .refuse')")
    session = browser.run("return location.hash.split('/')[1]")
    asked = {"approvals/x": '{"decision": "approve"}', f"sessions/{session}/terminate": '{"reason": ""}'}
    failed = browser.run("return [...document.querySelectorAll('.error')].map(element => element.innerText).join('')")
    assert not failed, failed
    for path, body in asked.items():
        status = browser.run(
            "return fetch('/api/' + arguments[0], {method: 'POST', headers: {'content-type': 'application/json'}, "
            "body: arguments[1]}).then(answer => answer.status)", path, body)
        assert status == 403, (path, status)
    say("looked")


def flood(browser, url, token):
    """10,000 execs a minute: what is drawn and kept is bounded, the newest shows, a filter finds, keys do."""
    log_in(browser, url, token)
    say("logged-in")
    half = heard()
    browser.write("input[type=search]", half)
    browser.sees(".row .command", half)
    # What matches is the one command, and those of which it is the beginning.
    shown = browser.run("return [...document.querySelectorAll('.row .command')].map(element => element.innerText)")
    assert all(half in command for command in shown), shown
    browser.run("const field = document.querySelector('input[type=search]'); field.value = ''; "
                "field.dispatchEvent(new Event('input')); field.blur()")
    early = browser.heap()
    say("half-seen")
    # The list goes on while somebody looks at one of its rows, and stands still while they are further down.
    browser.press("j")
    browser.sees(".detail", "Session")
    browser.press("Escape")
    browser.run("document.getElementById('view').scrollTop = 2000")
    browser.sees(".newer", "Newer ones")
    first = browser.run("return document.querySelector('[data-key]').dataset.key")
    time.sleep(1)
    assert first == browser.run("return document.querySelector('[data-key]').dataset.key"), "the list moves"
    browser.click(".newer")
    browser.sees_none(".newer")
    last = heard()
    browser.sees(".row .command", last)
    rows = browser.run("return document.querySelectorAll('.row').length")
    assert rows <= 301, rows
    elements = browser.run("return document.querySelectorAll('*').length")
    assert elements < 4000, elements
    late = browser.heap()
    assert late < 1.5 * early, f"{early} bytes after half of the execs, {late} in the end"
    browser.screenshot("busy")
    browser.press("5")
    browser.sees(".rules .row .waited", "10000")
    say(f"bounded: {rows} rows, {elements} elements, {early >> 10} and {late >> 10} KiB")


def broken(browser, url, token):
    """Rules that can't be used are told of, and what is told goes away with them."""
    log_in(browser, url, token)
    browser.sees_none("#rules-error")
    say("logged-in")
    browser.sees("#rules-error", "!")
    browser.press("5")
    browser.sees(".fault", "rules.star")
    browser.screenshot("broken-rules")
    browser.size(390, 780)
    browser.fits()
    browser.screenshot("broken-rules-phone")
    browser.size(1360, 820)
    say("told")
    browser.sees_none("#rules-error")
    browser.sees_none(".fault")
    say("mended")


def ending(browser, url, token):
    """A session is ended, once it is said again that it should be."""
    log_in(browser, url, token)
    browser.press("3")
    browser.sees(".sessions .row", "live")
    browser.press("j")
    browser.press("Enter")
    browser.sees(".card .refuse", "End this session")
    browser.click(".card > .refuse")
    browser.sees("dialog", "can't be undone")
    browser.screenshot("ending")
    browser.size(390, 780)
    browser.screenshot("ending-phone")
    browser.size(1360, 820)
    browser.press("Escape")
    browser.sees_none("dialog")
    browser.sees(".card .refuse", "End this session")
    browser.click(".card > .refuse")
    browser.write("dialog input", "runs wild, 123")
    assert browser.run("return location.hash.startsWith('#sessions/')"), "a key of the dialog changed the view"
    say("asked")
    heard()
    browser.click("dialog .refuse")
    browser.sees(".facts", "Ended")
    browser.sees_none(".card > .refuse")
    browser.screenshot("ended")
    say("ended")


def accessible(browser):
    """What can be acted on has a name, and what is chosen is told."""
    unnamed = browser.run("""
        return [...document.querySelectorAll('button, input, select, [role], nav')].filter(element => element.checkVisibility()
            && element.getAttribute('aria-hidden') !== 'true' && !(element.getAttribute('aria-label') || element.title
            || element.labels?.length || element.textContent.trim() || ['alert', 'status'].includes(element.role)))
            .map(element => element.outerHTML.slice(0, 120))""")
    assert not unnamed, unnamed[:5]
    nested = browser.run("return document.querySelectorAll('[role=option] button, [role=option] input').length")
    assert not nested, "an option of a list holds controls"


def scopes(browser, url, token):
    """What a decision holds for, by the page; and what the page's own interface refuses."""
    log_in(browser, url, token)
    say("logged-in")
    for number, (scope, seconds) in enumerate([("session", "3600"), ("session-prefix", "3600"), ("gate-prefix", "900")]):
        browser.run("location.hash = 'approvals'")
        browser.sees(".approval .verdict.waiting", "pending")
        accessible(browser)
        chosen = ".approval:not(.is-closed) "
        browser.run("""
            const card = document.querySelector('.approval:not(.is-closed)');
            const choose = (name, value) => {
                const field = card.querySelector(`[aria-label="${name}"]`);
                field.value = value;
                field.dispatchEvent(new Event('change'));
                if (!field.checkVisibility()) throw new Error(`${name} isn't shown`);
            };
            choose('For which execs', arguments[0]);
            choose('For how long', arguments[1]);
            if (arguments[0].endsWith('-prefix')) choose('How many first arguments', '1');""", scope, seconds)
        browser.write(chosen + "input[aria-label=Note]", f"note {number}")
        # A key that is written is no command.
        browser.write(chosen + "input[aria-label=Note]", "ad?1")
        browser.size(390, 780)
        browser.fits()
        browser.screenshot(f"scope-{scope}-phone")
        browser.size(1360, 820)
        browser.click(chosen + "button.approve")
        browser.sees(".approval.is-closed", f"note {number}ad?1")
        say(scope)
        heard()
    browser.sees(".approval .verdict.waiting", "pending")
    # An id is in no attribute that a person reads.
    pending = browser.run("return document.querySelector('.approval:not(.is-closed)').dataset.key")
    ask = """
        return fetch('/api/approvals/' + arguments[0], {method: 'POST', headers: {'content-type': 'application/json'},
            body: arguments[1]}).then(async answer => [answer.status, await answer.text()])"""
    for body, status, says in [
        ('{"decision": "maybe"}', 400, "approve or deny"),
        ('{"decision": "approve", "scope": "all"}', 400, "The scope is"),
        ('{"decision": "approve", "scope": "gate-prefix", "prefix": 99, "seconds": 60}', 400, "arguments"),
        ('{"decision": "approve", "scope": "gate-prefix", "prefix": 1}', 400, "the time for which it is to hold"),
        ('{"decision": "approve", "scope": "session", "seconds": 4294967295}', 400, "at most"),
        ('{"decision": "approve", "scope": "session", "seconds": -1}', 422, ""),
        ('{"decision": "approve", "force": true}', 422, "force"),
        (json.dumps({"decision": "approve", "note": "x" * 2000}), 400, "2000 bytes"),
        (json.dumps({"decision": "approve", "note": "x" * (1 << 20)}), 413, ""),
    ]:
        answer = browser.run(ask, pending, body)
        assert answer[0] == status and says in answer[1], (body[:80], answer)
    answer = browser.run(ask, "00000000", '{"decision": "deny"}')
    assert answer[0] == 404, answer
    # Nothing of it has decided anything. Of two decisions the first holds, and the second learns of it.
    browser.sees(".approval .verdict.waiting", "pending")
    for body, outcome in [('{"decision": "deny", "note": "no"}', "resolved"), ('{"decision": "approve"}', "closed-before")]:
        answer = browser.run(ask, pending, body)
        told = json.loads(answer[1])
        assert (answer[0], told["outcome"], told["approval"]["state"]) == (200, outcome, "denied"), answer
    say("refused")


def whole(browser, url, token):
    """A long command is there whole, and with how many words; it is approved once its end was seen, and not before."""
    log_in(browser, url, token)
    say("logged-in")
    browser.press("2")
    browser.sees(".approval .words", "603 words")
    command = browser.run("return document.querySelector('pre.command').innerText")
    assert command.count(" --harmless") == 600 and command.endswith(" --evil"), command
    accessible(browser)
    for scheme, width, height in [("dark", 390, 780), ("light", 1360, 820)]:
        browser.scheme(scheme)
        browser.size(width, height)
        browser.fits()
        browser.screenshot(f"whole-{scheme}")
    assert browser.run("return document.querySelector('button.approve').disabled"), "its end wasn't seen"
    browser.press("a")
    browser.sees("#toast", "scroll to the end")
    browser.run("document.querySelector('pre.command').scrollTop = 40")
    # What comes meanwhile leaves it where it is, and may be approved: all of it is seen.
    say("scrolled")
    browser.sees("#pending", "2")
    browser.until("the other one can be approved",
                  "return [...document.querySelectorAll('button.approve')].map(button => button.disabled).join() === 'true,false'")
    assert browser.run("return document.querySelector('pre.command').scrollTop") == 40, "it moved"
    browser.sees(".approval .verdict.waiting", "pending")
    browser.press("End")
    browser.until("it can be approved", "return !document.querySelector('button.approve').disabled")
    browser.sees_none(".words.is-more")
    browser.press("a")
    browser.sees(".approval.is-closed .words", "603 words")
    say("approved")


def gone(browser, url, token):
    """A service that is gone is told of, by the page and by what is tried on it; all that was seen stays."""
    log_in(browser, url, token)
    browser.sees(".row .command", "sleep")
    browser.sees_none("#lost")
    accessible(browser)
    browser.press("2")
    browser.sees(".approval .verdict.waiting", "pending")
    say("logged-in")
    browser.sees("#lost", "out of date")
    browser.sees("#connection", "no connection")
    for name in ["history", "sessions", "rules"]:
        browser.run("location.hash = arguments[0]", name)
        browser.sees(".error", "can't be reached")
    browser.run("location.hash = 'approvals'")
    browser.click("button.approve")
    browser.sees("#toast", "can't be reached")
    browser.size(390, 780)
    browser.fits()
    browser.screenshot("gone-phone")
    say("told")


def main():
    scenario, url, token = sys.argv[1:4]
    browser = Browser(sys.argv[4] if len(sys.argv) > 4 else None)
    try:
        scenarios = [approve, revoked, auditor, flood, broken, ending, scopes, whole, gone]
        {each.__name__: each for each in scenarios}[scenario](browser, url, token)
    finally:
        browser.close()


main()
