"""How a program that runs in the foreground writes its log: to standard error, a record a line."""

import datetime
import json
import logging

from oci_hook.cli import output

LEVELS = ("error", "warning", "info", "debug")
FORMATS = ("text", "json")


class Text(logging.Formatter):
    """TIME LEVEL MESSAGE; the time is UTC to the millisecond. Control characters of the message are escaped: a name in it may be
    anybody's. A traceback follows in lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{time_of(record)} {record.levelname} {output.printable(record.getMessage())}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class Json(logging.Formatter):
    """An object a line: time, level, logger, message, and traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def time_of(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def start(level: str, form: str) -> None:
    """level: one of LEVELS, the lowest that is written. form: one of FORMATS."""
    handler = logging.StreamHandler()
    handler.setFormatter(Json() if form == "json" else Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
