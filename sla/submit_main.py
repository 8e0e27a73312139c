"""What spark-submit is given: `spark-submit ... --py-files georelay_sla.zip submit_main.py report ...`."""

from sla.__main__ import main

if __name__ == "__main__":
    main()
