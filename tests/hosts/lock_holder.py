"""Locks the head of the certificate log and never lets go; meanwhile looks whether the database answers.

python -m tests.hosts.holding
"""

import time

from sqlalchemy.exc import SQLAlchemyError

from app.bootstrap import Services
from app.settings import load_settings
from worker.pipeline import log as certificate_log


def main() -> None:
    services = Services(load_settings())
    with services.database.writing() as session:
        certificate_log.lock(session)
        print("locked", flush=True)
        while True:
            try:
                services.database.check()
            except SQLAlchemyError:
                print("away", flush=True)
            time.sleep(0.5)


if __name__ == "__main__":
    main()
