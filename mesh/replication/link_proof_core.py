"""Who dials, proved before OPEN is answered: the exchange of one link where the mesh has a secret (mesh_secret). Pure.

    dialler                      acceptor
      OPEN            ->
                      <-         CHALLENGE (its broker id and nonce)
      PROOF (nonce)   ->
                      <-         PROOF, OPEN

Rule 1: an acceptor with a secret challenges everybody of protocol version 3; who is older cannot prove anything and is
        refused, unless the secret is not required.
Rule 2: a dialler whose secret is required takes no OPEN from who has not proved that it is the broker it looks for.
Rule 3: a dialler without a secret answers a challenge with zeros: where the secret is not required, that is enough.
"""

from __future__ import annotations

from typing import Final

from georelay.ids import BrokerId
from mesh.listening.mesh_secret import NO_NONCE, NO_PROOF, NONCE_BYTES, PROOF_BYTES, Call, MeshSecret, is_same
from mesh.replication.link_parts import Challenge, Open, Proof
from mesh.replication.link_state import PeerProtocolError

PROOF_SINCE_VERSION: Final = 3  # of the link protocol
PURPOSE: Final = b"link"
NOT_PROVED: Final = "it did not prove the secret of the mesh: the same mesh_secret_file, or certificates, on both sides"


class LinkProof:
    """One end of the exchange; `nonce` is a random value of this end, used for this link only."""

    def __init__(self, secret: MeshSecret | None, *, me: BrokerId, nonce: bytes) -> None:
        self._secret = secret
        self._me = me
        self._nonce = nonce
        self._call: Call | None = None
        self._peer_proved = False

    @property
    def missing(self) -> str:
        """Return why the other end is refused if nothing more of it comes, "" when it is not."""
        is_refused = self._secret is not None and self._secret.required and not self._peer_proved
        return NOT_PROVED if is_refused else ""

    # --- the accepting end ------------------------------------------------------------------------

    def challenge(self, peer: Open) -> Challenge | None:
        """Return what to ask a dialler, None when there is nothing to ask (`missing` judges then)."""
        if self._secret is None or peer.protocol_version < PROOF_SINCE_VERSION:
            return None
        self._call = Call(peer.broker_id, self._me, NO_NONCE, self._nonce)
        return Challenge(self._me, self._nonce)

    def answered(self, proof: Proof) -> Proof:
        """Judge what a dialler shows and return what we show. Raises PeerProtocolError: nobody was asked."""
        if self._secret is None or self._call is None:
            raise PeerProtocolError("PROOF without CHALLENGE")
        call, self._call = self._call._replace(dialler_nonce=proof.nonce), None
        self._peer_proved = is_same(proof.proof, self._secret.dialler_proof(call, PURPOSE))
        return Proof(NO_NONCE, self._secret.acceptor_proof(call, PURPOSE))

    # --- the dialling end -------------------------------------------------------------------------

    def answer(self, challenge: Challenge) -> Proof:
        """Return what to show an acceptor that was checked to be the broker looked for. Raises PeerProtocolError."""
        if self._call is not None:
            raise PeerProtocolError("a second CHALLENGE")
        self._call = Call(self._me, challenge.broker_id, self._nonce, challenge.nonce)
        if self._secret is None:
            return Proof(NO_NONCE, NO_PROOF)
        return Proof(self._nonce, self._secret.dialler_proof(self._call, PURPOSE))

    def shown(self, proof: Proof) -> None:
        """Judge what the acceptor shows. Raises PeerProtocolError: it was not asked."""
        if self._call is None:
            raise PeerProtocolError("PROOF without CHALLENGE")
        if self._secret is not None:
            self._peer_proved = is_same(proof.proof, self._secret.acceptor_proof(self._call, PURPOSE))


assert (len(NO_NONCE), len(NO_PROOF)) == (NONCE_BYTES, PROOF_BYTES)
