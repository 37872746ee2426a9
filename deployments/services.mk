# Prefect on this machine: server, pools and workers on loopback. State lives under .services/.

up: $(READY) ## start server, pools and workers (PORT=4300 GPUS=4)
	@$(BIN)/python deployments/services.py up $(if $(PORT),--port $(PORT)) $(if $(GPUS),--gpus $(GPUS))

deploy: $(READY) ## register the deployments
	@$(BIN)/python deployments/services.py deploy

down: ## stop server and workers
	@$(PYTHON) deployments/services.py down

.PHONY: up deploy down
