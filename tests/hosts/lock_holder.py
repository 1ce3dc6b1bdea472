"""Lock the certificate log forever, and report when the database stops answering.

python -m tests.hosts.lock_holder
"""

import time

from sqlalchemy.exc import SQLAlchemyError

from app.core.settings import load_settings
from app.db import log_store as certificate_log
from app.services import Services


def main() -> None:
    """Hold the lock and poll the database."""
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
