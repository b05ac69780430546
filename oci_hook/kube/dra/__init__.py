"""The node's driver of ResourceClaims (Kubernetes 1.36, DRAConsumableCapacity), a process of the agent on nodes with the setting
`cluster: dra`. Pure: messages, allocation, slices, cdi. The others are edges: connections (gRPC), claims (ledger, CDI files, API
server), publisher, driver (the loop)."""
