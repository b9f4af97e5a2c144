"""FaaSConf, the paper's multi-agent baseline: every expert is an agent, one actor for all, attention over neighbours.

Written from the published description (Wang et al., "FaaSConf: QoS-aware Hybrid Resources Configuration for
Serverless Workflows", ASE 2024) and the numbers of its public repository, adapted to Φ; departures stand in
``docs/policies.md``. It must never see a test hour, and its actions never leave Φ or break Eq. (2) and (4).
"""
