"""`locust -f loadtest/locustfile.py --campaign NAME`: a campaign's users, their shape, and what is told of them.

The clients are in engines, processes without gevent (loadtest.load.engine); here is who of them is there, and what they
did. `georelay load run NAME` starts this with a mesh, breaks the mesh, and judges.
"""

from loadtest.load.locust_run import make_shape, make_users

globals().update(make_users())
CampaignShape = make_shape()
