"""Opening a page, using its controls, and what must never happen on it."""

import json


class OpenPage:
    """A page from the disk in a real browser."""

    def __init__(self, driver, path):
        self.driver = driver
        driver.get_log("browser"), driver.get_log("performance")  # what came before
        driver.get(path.as_uri())
        self.address = path.as_uri()

    def all(self, selector, within=None):
        """Elements by their CSS selector."""
        return (within or self.driver).find_elements("css selector", selector)

    def one(self, selector, within=None):
        """The only element of a selector."""
        (found,) = self.all(selector, within)
        return found

    def run(self, script, *arguments):
        """The value of a piece of JavaScript."""
        return self.driver.execute_script(f"return {script}", *arguments)

    def press(self, element, *keys):
        """Type keys into an element that the keyboard has reached."""
        self.run("arguments[0].focus()", element)
        element.send_keys(*keys)

    def click(self, element):
        """Click an element where it can be seen."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def choose(self, select, value):
        """Pick an option as a reader does."""
        for option in self.all("option", select):
            if option.get_attribute("value") == value:
                option.click()
                return
        raise AssertionError(f"there is no option {value}")

    def emulate(self, *, dark=False, width=1100, media=""):
        """Another screen."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},  # else clicks chase the page
        ]
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": features}
        )

    def complaints(self):
        """What the page wrote into the console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        """Addresses that were asked for, the page itself and data within it aside."""
        asked = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.append(message["params"]["request"]["url"])
        entries = "performance.getEntriesByType('resource').map((e) => e.name)"
        asked += self.run(entries)
        return [
            url
            for url in asked
            if url.split("#")[0] != self.address and not url.startswith("data:")
        ]
